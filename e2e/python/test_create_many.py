"""Creates that happen once whatever is sent again, and many creates by one call."""

import concurrent.futures

import httpx

import osb

from conftest import minimal


def key(name):
    return {"Idempotency-Key": name}


def ids(raw, label):
    listed = raw.get("/sandboxes", params={"metadata": f"batch={label}", "pageSize": 200}).json()
    return {item["id"] for item in listed["items"]}


def end(raw, label):
    for sandbox_id in ids(raw, label):
        assert raw.delete(f"/sandboxes/{sandbox_id}").status_code == 204


def test_a_create_with_a_key_happens_once(raw):
    body = minimal(metadata={"batch": "once"})
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: raw.post("/sandboxes", json=body, headers=key("run-1")), range(16)))
    assert {answer.status_code for answer in answers} == {202}
    made = {answer.json()["id"] for answer in answers}
    assert len(made) == 1 and ids(raw, "once") == made
    assert sorted("idempotent-replayed" in answer.headers for answer in answers) == [False] + [True] * 15
    end(raw, "once")


def test_a_key_outlives_the_server(tmp_path_factory):
    with osb.running(tmp_path_factory, "osb-once") as server:

        def create():
            return httpx.post(
                f"http://{server.domain}/v1/sandboxes",
                json=minimal(),
                headers={"OPEN-SANDBOX-API-KEY": server.key, **key("run-1")},
                timeout=60,
            )

        first = create()
        server.kill()
        server.start()
        again = create()
        assert (first.status_code, again.status_code) == (202, 202), again.text
        assert again.json()["id"] == first.json()["id"]


def test_a_key_belongs_to_one_body_and_one_sandbox(raw):
    body = minimal(metadata={"batch": "reuse"})
    made = raw.post("/sandboxes", json=body, headers=key("run-2")).json()["id"]
    other = raw.post("/sandboxes", json=minimal(timeout=299), headers=key("run-2"))
    assert (other.status_code, other.json()["code"]) == (422, "SANDBOX::IDEMPOTENCY_KEY_REUSED")
    assert raw.delete(f"/sandboxes/{made}").status_code == 204
    gone = raw.post("/sandboxes", json=body, headers=key("run-2"))
    assert (gone.status_code, gone.json()["code"]) == (409, "SANDBOX::IDEMPOTENCY_KEY_SPENT")
    assert made in gone.json()["message"]
    # One that was refused made nothing, so its key is free.
    refused = raw.post("/sandboxes", json=minimal(timeout=-1), headers=key("run-3"))
    assert refused.status_code in (400, 422), refused.text
    good = raw.post("/sandboxes", json=body, headers=key("run-3"))
    assert good.status_code == 202, good.text
    for bad in ("", "a b", "x" * 256):
        answer = raw.post("/sandboxes", json=body, headers=key(bad))
        assert answer.status_code == 400 and "Idempotency-Key" in answer.json()["message"], answer.text
    end(raw, "reuse")


def test_a_batch_makes_each_with_what_is_its_own(raw):
    common = minimal(metadata={"batch": "many"}, env={"A": "all", "B": "all"})
    items = [{"entrypoint": ["sh", "-c", f"echo $A $B {n}; sleep 60"], "env": {"B": str(n)}} for n in range(8)]
    answer = raw.post("/sandboxes/batch?wait=30", json={"sandbox": common, "items": items})
    assert answer.status_code == 202, answer.text
    told = answer.json()
    assert (told["accepted"], told["refused"]) == (8, 0)
    made = [item["sandbox"] for item in told["items"]]
    assert {sandbox["status"]["state"] for sandbox in made} == {"Running"}
    assert {sandbox["id"] for sandbox in made} == ids(raw, "many")
    for n, sandbox in enumerate(made):
        logs = raw.get(f"/sandboxes/{sandbox['id']}/diagnostics/logs", params={"scope": "container"}).text
        assert f"all {n} {n}" in logs, logs
    end(raw, "many")


def test_a_batch_tells_of_each_and_repeats_none(raw):
    items = [{}, {"timeout": -5}, {"nonsense": 1}, {}]
    body = {"sandbox": minimal(metadata={"batch": "some"}), "items": items}
    first = raw.post("/sandboxes/batch", json=body, headers=key("batch-1"))
    again = raw.post("/sandboxes/batch", json=body, headers=key("batch-1"))
    for answer in (first, again):
        told = answer.json()
        assert (answer.status_code, told["accepted"], told["refused"]) == (202, 2, 2), answer.text
        assert ["sandbox" in item for item in told["items"]] == [True, False, False, True]
        assert "timeout" in told["items"][1]["error"]["message"]
        assert "nonsense" in told["items"][2]["error"]["message"]
    assert len(ids(raw, "some")) == 2
    end(raw, "some")
    none = raw.post("/sandboxes/batch", json={"sandbox": minimal(), "items": [{"timeout": -5}] * 3})
    assert none.status_code == 400 and "items.0" in none.json()["message"], none.text
    for items in ([], [{}] * 1001):
        refused = raw.post("/sandboxes/batch", json={"sandbox": minimal(), "items": items})
        assert refused.status_code == 400 and "items" in refused.json()["message"], refused.text
    common = minimal(env={"LONG": "x" * 100_000})
    long = raw.post("/sandboxes/batch", json={"sandbox": common, "items": [{}] * 400})
    assert long.status_code == 413 and "items" in long.json()["message"], long.text
    unknown = raw.post("/sandboxes/batch", json={"items": [{}], "count": 3})
    assert unknown.status_code == 422 and "count" in unknown.text


def test_the_command_line_makes_many(server, raw):
    made = server.cli("sandbox", "create", "--count", "3", "-m", "batch=cli", "-t", "5m")
    assert made.returncode == 0, made.stderr
    assert made.stdout.count("Running") == 3, made.stdout
    assert len(ids(raw, "cli")) == 3
    end(raw, "cli")
    assert server.cli("sandbox", "create", "--count", "0").returncode == 2
