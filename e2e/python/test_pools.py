"""Sandboxes that wait: pools, those that are kept ready by themselves, templates, and the pools of the published client.

What is claimed must be as good as new: whatever could be told apart from a sandbox that was made for its owner alone is
compared here.
"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
from datetime import timedelta

import httpx
import pytest
from opensandbox import Sandbox, SandboxSync
from opensandbox.config import ConnectionConfigSync
from opensandbox.pool import SandboxPoolSync
from opensandbox.pool_types import AcquirePolicy, PoolCreationSpec
from opensandbox.models.sandboxes import NetworkPolicy, NetworkRule

import clients
import osb
from conftest import minimal, plain

# Longest wait for a pool to come to rest, on a loaded machine.
REST_SECONDS = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with osb.running(tmp_path_factory, "osb-pools") as started:
        yield started


@pytest.fixture(scope="module")
def raw(server):
    with plain(server) as made:
        yield made


def capacity(ready, most=None, pool_max=50, pool_min=0):
    return {"bufferMin": ready, "bufferMax": ready if most is None else most, "poolMax": pool_max, "poolMin": pool_min}


@contextlib.contextmanager
def pool(raw, name, numbers, template=None, **fields):
    body = {"name": name, "template": template or {"image": {"uri": "host"}}, "capacitySpec": numbers, **fields}
    answer = raw.post("/pools", json=body)
    assert answer.status_code == 201, answer.text
    try:
        yield answer.json()
    finally:
        assert raw.delete(f"/pools/{name}").status_code == 204


def common(raw, **limits):
    """A template whose sandboxes a create with these limits can claim: an ordinary user's have theirs from the start."""
    is_user = raw.get("/capabilities").json()["runtime"]["mode"] == "user"
    return {"image": {"uri": "host"}, **({"resourceLimits": limits} if is_user else {})}


def status(raw, name):
    return raw.get(f"/pools/{name}").json()["status"]


def until(raw, name, wanted):
    deadline = time.monotonic() + REST_SECONDS
    while True:
        now = status(raw, name)
        if wanted(now):
            return now
        assert time.monotonic() < deadline, now
        time.sleep(0.02)


def take(raw, name, **changes):
    extensions = {"poolRef": name, **changes.pop("extensions", {})}
    return raw.post(
        "/sandboxes", json={"extensions": extensions, "timeout": 300, **changes}, params={"wait": "30"}
    )


def taken(raw, name, **changes):
    answer = take(raw, name, **changes)
    assert answer.status_code == 202, answer.text
    return answer.json()


def run(raw, sandbox_id, command):
    """What a command in a sandbox writes."""
    endpoint = raw.get(f"/sandboxes/{sandbox_id}/endpoints/44772").json()
    answer = httpx.post(
        f"http://{endpoint['endpoint']}/command", headers=endpoint["headers"], json={"command": command}, timeout=60
    )
    events = [json.loads(part) for part in answer.text.split("\n\n") if part.strip()]
    assert any(event["type"] == "execution_complete" for event in events), answer.text
    # Each line of output is an event.
    return "\n".join(event["text"].rstrip("\n") for event in events if event["type"] == "stdout")


def end(raw, *made):
    for sandbox in made:
        assert raw.delete(f"/sandboxes/{sandbox['id']}", params={"grace": 0}).status_code == 204


def waiting_processes(server):
    """Sandboxes of this server of which anything is left, whoever has them."""
    directory = server.data / "native" / "sandboxes"
    if not directory.exists():
        directory = next(server.data.glob("**/sandboxes"))
    return {entry.name for entry in directory.iterdir()}


def test_os_094_a_pool_reference_alone_makes_a_sandbox_that_answers(raw, server):
    with pool(raw, "alone", capacity(2)):
        until(raw, "alone", lambda now: now["available"] == 2)
        sandbox = taken(raw, "alone")
        assert sandbox["status"]["state"] == "Running", sandbox
        assert run(raw, sandbox["id"], "echo hello") == "hello"
        assert sandbox["allocation"] == {"mode": "pool", "poolRef": "alone", "state": "allocated"}
        assert sandbox["image"]["uri"] == "host"
        now = until(raw, "alone", lambda now: now["available"] == 2)
        assert (now["allocated"], now["hits"], now["misses"]) == (1, 1, 0)
        end(raw, sandbox)
        assert until(raw, "alone", lambda now: now["allocated"] == 0)["total"] == 2


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_published_client_takes_from_a_pool_and_finds_its_own_settings(raw, server, kind):
    client = clients.Client(kind, server.domain, server.key)
    template = common(raw, cpu="1", memory="256Mi")
    with pool(raw, f"client-{kind}", capacity(2), template=template) as made:
        until(raw, made["name"], lambda now: now["available"] == 2)
        sandbox = client.create(
            extensions={"poolRef": made["name"]},
            env={"COLOUR": "blue"},
            metadata={"team": "a"},
            entrypoint=["sh", "-c", "echo $COLOUR > /tmp/entry; exec sleep infinity"],
            resource={"cpu": "1", "memory": "256Mi"},
            timeout=timedelta(minutes=5),
        )
        out = sandbox.commands.run("echo $COLOUR; cat /tmp/entry")
        assert [line.text.strip() for line in out.logs.stdout] == ["blue", "blue"]
        assert sandbox.get_info().metadata == {"team": "a"}
        assert status(raw, made["name"])["hits"] == 1
        receipt = raw.get(f"/sandboxes/{sandbox.id}").json()["receipt"]
        if receipt["limits"]["memory"]["by"].startswith("cgroup"):
            assert receipt["limits"]["memory"]["value"] == 256 * 1024 * 1024
            shm = run(raw, sandbox.id, "df -k /dev/shm | tail -1 | tr -s ' ' | cut -d' ' -f2")
            assert int(shm) == 128 * 1024
        client.close()


def test_two_sandboxes_share_nothing_that_is_theirs(raw):
    probe = "cat /etc/machine-id /proc/sys/kernel/hostname /etc/hostname; id; cat /proc/self/uid_map"
    with pool(raw, "apart", capacity(3)):
        until(raw, "apart", lambda now: now["available"] == 3)
        made = [taken(raw, "apart") for _ in range(3)]
        assert status(raw, "apart")["hits"] == 3
        tokens, machines, hosts = set(), set(), set()
        for sandbox in made:
            endpoint = raw.get(f"/sandboxes/{sandbox['id']}/endpoints/44772").json()
            tokens.add(json.dumps(sorted(endpoint["headers"].items())))
            lines = run(raw, sandbox["id"], probe).splitlines()
            machines.add(lines[0])
            hosts.add(lines[1])
            assert lines[1] == lines[2] == sandbox["id"]
        assert len(tokens) == len(machines) == len(hosts) == 3
        assert all(len(machine) == 32 for machine in machines)
        # The token of one opens no other.
        other = raw.get(f"/sandboxes/{made[1]['id']}/endpoints/44772").json()
        mine = raw.get(f"/sandboxes/{made[0]['id']}/endpoints/44772").json()
        crossed = httpx.get(f"http://{other['endpoint']}/metrics", headers=mine["headers"])
        assert crossed.status_code in (401, 403), crossed.text
        end(raw, *made)


def test_a_claimed_sandbox_is_as_good_as_new(tmp_path_factory):
    """What can be seen inside and in the receipt of a claimed one and of one made for its owner alone."""
    body = {"entrypoint": ["sleep", "infinity"], "resourceLimits": {"cpu": "1", "memory": "128Mi"}, "env": {"A": "1"}}
    look = (
        "env | grep -v -e ID -e HOSTNAME -e TOKEN | sort; ls -A / /tmp /root /run /dev /dev/shm; cat /proc/mounts | cut -d' ' -f2,3 | sort;"
        "cat /proc/self/status | grep -e Cap -e Seccomp -e NoNewPrivs -e Groups; cat /etc/resolv.conf; ls -A /etc /var/tmp;"
        "ps -e -o args= | grep -cx 'sleep infinity'"
    )
    without = "[warm]\nmax_memory_bytes = 0\n"
    with (
        osb.running(tmp_path_factory, "osb-new", without) as server,
        plain(server) as raw,
        pool(raw, "new", capacity(1), template=common(raw, **body["resourceLimits"])),
    ):
        until(raw, "new", lambda now: now["available"] == 1)
        claimed = taken(raw, "new", **body)
        assert status(raw, "new")["hits"] == 1
        # Without the pool nothing waits here.
        cold = raw.post("/sandboxes", json=minimal(**body), params={"wait": "30"}).json()
        for sandbox in (claimed, cold):
            assert sandbox["status"]["state"] == "Running", sandbox
        seen = [run(raw, sandbox["id"], look).replace(sandbox["id"], "ID") for sandbox in (claimed, cold)]
        # execd makes its own directory when it first has something to put there, in each of them.
        seen = [[line for line in said.splitlines() if "opensandbox-execd" not in line] for said in seen]
        assert seen[0] == seen[1]
        receipts = [dict(sandbox["receipt"]) for sandbox in (claimed, cold)]
        for receipt in receipts:
            receipt.pop("idRange", None)
        assert receipts[0] == receipts[1]
        end(raw, claimed, cold)


def test_ex_039_fifty_claims_drain_a_pool_and_none_is_handed_out_twice(raw):
    with pool(raw, "drain", capacity(10, pool_max=60)):
        # Right after it was made: whoever comes gets one.
        first = taken(raw, "drain")
        until(raw, "drain", lambda now: now["available"] == 10)
        with concurrent.futures.ThreadPoolExecutor(16) as many:
            made = list(many.map(lambda _: taken(raw, "drain"), range(50)))
        assert {sandbox["status"]["state"] for sandbox in made} == {"Running"}, made
        assert len({sandbox["id"] for sandbox in made}) == 50
        now = status(raw, "drain")
        assert now["total"] <= 60 and now["hits"] + now["misses"] == 51 and now["hits"] >= 10
        with concurrent.futures.ThreadPoolExecutor(8) as many:
            said = list(many.map(lambda sandbox: run(raw, sandbox["id"], "hostname"), made[:20]))
        assert said == [sandbox["id"] for sandbox in made[:20]]
        figures = raw.get("/../metrics").text
        assert f'pool_claims_total{{pool="drain",outcome="hit"}} {now["hits"]}' in figures
        assert 'pool_claim_seconds_count{pool="drain"}' in figures
        with concurrent.futures.ThreadPoolExecutor(8) as many:
            list(many.map(lambda sandbox: end(raw, sandbox), [first, *made]))
        now = until(raw, "drain", lambda now: now["allocated"] == 0 and now["available"] == now["total"] == 10)


def test_ex_039_a_full_pool_says_so_and_when_to_come_again(tmp_path_factory):
    with osb.running(tmp_path_factory, "osb-full", "[warm]\npool_wait_seconds = 1\n") as server, plain(server) as raw:
        with pool(raw, "full", capacity(1, pool_max=1)):
            until(raw, "full", lambda now: now["available"] == 1)
            sandbox = taken(raw, "full")
            start = time.monotonic()
            refused = take(raw, "full")
            assert refused.status_code == 429 and refused.json()["code"] == "SANDBOX::POOL_CAPACITY_EXHAUSTED"
            assert int(refused.headers["retry-after"]) >= 1
            assert "1 of 1 are in use" in refused.json()["message"]
            assert time.monotonic() - start < 10
            assert status(raw, "full")["refused"] == 1
            # Room is given to whoever waits for it.
            with concurrent.futures.ThreadPoolExecutor(1) as other:
                waiting = other.submit(taken, raw, "full")
                end(raw, sandbox)
                end(raw, waiting.result())
        with pool(raw, "strict", capacity(1, pool_max=9), whenEmpty="refuse"):
            until(raw, "strict", lambda now: now["available"] == 1)
            made = [taken(raw, "strict") for _ in range(3)]
            # Each waited until one was made to wait, and none was made in its stead.
            now = status(raw, "strict")
            assert (now["hits"], now["misses"]) == (3, 0)
            end(raw, *made)


def test_os_093_null_and_absent_are_the_same_in_pool_mode(raw):
    nulls = dict.fromkeys(
        ["image", "snapshotId", "platform", "resourceLimits", "resourceRequests", "env", "metadata", "lifecycle",
         "entrypoint", "networkPolicy", "credentialProxy", "volumes", "templateId"]
    )
    with pool(raw, "nulls", capacity(1)):
        sandbox = taken(raw, "nulls", **nulls)
        assert raw.get(f"/sandboxes/{sandbox['id']}").json()["status"]["state"] == "Running"
        listed = raw.get("/sandboxes", params={"pageSize": 200}).json()["items"]
        assert sandbox["id"] in {item["id"] for item in listed}
        assert raw.get(f"/sandboxes/{sandbox['id']}/endpoints/8080").status_code == 200
        end(raw, sandbox)


def test_os_094_a_main_process_that_fails_turns_the_sandbox_failed_with_its_reason(raw, server):
    with pool(raw, "fails", capacity(2), template={"image": {"uri": "host"}, "entrypoint": ["sh", "-c", "exit 3"]}):
        until(raw, "fails", lambda now: now["available"] == 2)
        sandbox = taken(raw, "fails")
        deadline = time.monotonic() + REST_SECONDS
        while (now := raw.get(f"/sandboxes/{sandbox['id']}").json())["status"]["state"] != "Failed":
            assert time.monotonic() < deadline, now
        assert now["status"]["reason"] == "EXITED_ERROR" and now["status"]["exit"]["code"] == 3
        missing = taken(raw, "fails", entrypoint=["/no/such/program"])
        assert missing["status"]["state"] == "Failed" and "no/such/program" in missing["status"]["message"]
        # Neither counts against the pool any more, and nothing of them is left on the machine.
        until(raw, "fails", lambda now: now["allocated"] == 0 and now["available"] == 2)
        end(raw, sandbox, missing)


def test_os_095_a_waiting_sandbox_that_is_killed_is_noticed_and_never_handed_out(raw, server):
    with pool(raw, "killed", capacity(2)):
        until(raw, "killed", lambda now: now["available"] == 2)
        before = waiting_processes(server)
        for name in before:
            state = server.data.glob(f"**/sandboxes/{name}/monitor.json")
            for path in state:
                monitor = json.loads(path.read_text())["monitor"]["pid"]
                os.kill(monitor, signal.SIGKILL)
        sandbox = taken(raw, "killed")
        assert sandbox["status"]["state"] == "Running", sandbox
        assert run(raw, sandbox["id"], "echo alive") == "alive"
        now = until(raw, "killed", lambda now: now["available"] == 2)
        end(raw, sandbox)
        deadline = time.monotonic() + REST_SECONDS
        while waiting_processes(server) & before:
            assert time.monotonic() < deadline, waiting_processes(server) & before
            time.sleep(0.1)


def test_os_098_numbers_change_while_sandboxes_come_and_go_and_no_limit_is_passed(raw):
    with pool(raw, "moving", capacity(2, 6, pool_max=12)):
        worst, stop = [], False

        def watch():
            while not stop:
                now = status(raw, "moving")
                worst.append((now["total"], now["allocated"]))
                time.sleep(0.005)

        def use(_):
            sandbox = taken(raw, "moving")
            assert sandbox["status"]["state"] == "Running"
            end(raw, sandbox)

        with concurrent.futures.ThreadPoolExecutor(8) as many:
            watcher = many.submit(watch)
            work = [many.submit(use, place) for place in range(40)]
            for numbers in (capacity(1, 3, pool_max=12), capacity(4, 8, pool_max=12), capacity(0, 2, pool_max=12)):
                time.sleep(0.3)
                assert raw.put("/pools/moving", json={"capacitySpec": numbers}).status_code == 200
            [job.result() for job in work]
            stop = True
            watcher.result()
        assert max(total for total, _ in worst) <= 12
        now = until(raw, "moving", lambda now: now["allocated"] == 0 and now["available"] <= 2)
        # At rest: nothing is made or removed any more.
        time.sleep(0.5)
        later = status(raw, "moving")
        time.sleep(1)
        assert status(raw, "moving") == later


def test_a_pool_writes_only_on_change(raw):
    with pool(raw, "quiet", capacity(1)) as made:
        assert made["status"]["revision"] == "1"
        same = raw.put("/pools/quiet", json={"capacitySpec": capacity(1)})
        assert same.json()["status"]["revision"] == "1"
        other = raw.put("/pools/quiet", json={"capacitySpec": capacity(0)})
        assert other.json()["status"]["revision"] == "2"
        until(raw, "quiet", lambda now: now["total"] == 0)


def test_a_policy_of_a_request_holds_on_a_sandbox_of_a_pool(raw, server):
    if raw.get("/capabilities").json()["network"] == "none":
        pytest.fail("this machine can steer no network; the tests need one that can")
    with pool(raw, "policy", capacity(2)):
        until(raw, "policy", lambda now: now["available"] == 2)
        policy = {"defaultAction": "deny", "egress": [{"action": "allow", "target": "allowed.test"}]}
        closed = taken(raw, "policy", networkPolicy=policy)
        assert status(raw, "policy")["hits"] == 1
        shown = raw.get(f"/sandboxes/{closed['id']}/networkpolicy").json()
        assert shown["policy"]["egress"] == policy["egress"], shown
        # By address: the kernel refuses at once what no rule could allow.
        said = run(
            raw,
            closed["id"],
            "python3 -c \"import socket; s=socket.socket(); s.settimeout(5)\ntry: s.connect(('192.0.2.7', 81)); print('open')\n"
            "except Exception as e: print(type(e).__name__)\"",
        )
        assert said == "ConnectionRefusedError", said
        end(raw, closed)


def test_the_pools_api_answers_as_published(raw):
    with pool(raw, "shapes", capacity(0)):
        again = raw.post(
            "/pools", json={"name": "shapes", "template": {"image": {"uri": "host"}}, "capacitySpec": capacity(0)}
        )
        assert (again.status_code, again.json()["code"]) == (409, "SANDBOX::POOL_ALREADY_EXISTS")
        assert "shapes" in {item["name"] for item in raw.get("/pools").json()["items"]}
    for method, path, body in [
        ("GET", "/pools/shapes", None),
        ("PUT", "/pools/shapes", {"capacitySpec": capacity(0)}),
        ("DELETE", "/pools/shapes", None),
    ]:
        answer = raw.request(method, path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (404, "SANDBOX::POOL_NOT_FOUND"), answer.text
    for reference in ("shapes", "*"):
        answer = take(raw, reference)
        assert (answer.status_code, answer.json()["code"]) == (404, "SANDBOX::POOL_NOT_FOUND"), answer.text
    assert raw.get("/pools", headers={"OPEN-SANDBOX-API-KEY": "wrong"}).status_code == 401
    good = {"name": "a", "template": {"image": {"uri": "host"}}, "capacitySpec": capacity(0)}
    for change, wanted, named in [
        ({"name": "A"}, 422, "name"),
        ({"capacitySpec": {"bufferMin": 1}}, 422, "capacitySpec"),
        ({"capacitySpec": capacity(5, 2)}, 400, "bufferMin"),
        ({"template": {"image": {"uri": "host"}, "volumes": []}}, 400, "template.volumes"),
        ({"template": {"image": {"uri": "host"}, "resourceLimits": {"cpu": "much"}}}, 400, "template.resourceLimits.cpu"),
        ({"template": {"spec": {"containers": [{"image": "host"}], "runtimeClassName": "kata"}}}, 400, "runtimeClassName"),
        ({"whenEmpty": "maybe"}, 400, "whenEmpty"),
        ({"colour": "blue"}, 422, "colour"),
    ]:
        answer = raw.post("/pools", json={**good, **change})
        assert answer.status_code == wanted and named in answer.json()["message"], answer.text


def test_ex_039_image_and_class_of_a_claim_are_its_pools(raw):
    with pool(raw, "mine", capacity(1), template={"spec": {"containers": [{"name": "sandbox", "image": "host"}]}}):
        wrong = take(raw, "mine", image={"uri": "alpine"}, entrypoint=["true"])
        assert wrong.status_code == 400 and "image.uri" in wrong.json()["message"]
        assert status(raw, "mine")["allocated"] == 0
        none = take(raw, "*", image={"uri": "alpine"}, entrypoint=["true"])
        assert none.status_code == 404
        sandbox = taken(raw, "*", image={"uri": "host"}, entrypoint=["sleep", "infinity"])
        assert sandbox["allocation"]["poolRef"] == "mine"
        end(raw, sandbox)


@pytest.mark.parametrize("victim", ["jailer", "api-server"])
def test_whoever_is_killed_pools_are_kept_again_and_nothing_is_lost_or_left(tmp_path_factory, victim):
    with osb.running(tmp_path_factory, f"osb-pool-{victim}") as server, plain(server) as raw:
        with pool(raw, "again", capacity(4)):
            until(raw, "again", lambda now: now["available"] == 4)
            mine = [taken(raw, "again") for _ in range(2)]
            for _ in range(3):
                os.kill(living(server, victim), signal.SIGKILL)
                deadline = time.monotonic() + REST_SECONDS
                while True:
                    try:
                        if raw.get("/pools/again").status_code == 200 and server.child(victim):
                            break
                    except httpx.HTTPError:
                        pass
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
                mine.append(taken(raw, "again"))
                assert run(raw, mine[-1]["id"], "echo alive") == "alive"
            now = until(raw, "again", lambda now: now["available"] == 4)
            assert now["allocated"] == 5
            for sandbox in mine:
                assert run(raw, sandbox["id"], "hostname") == sandbox["id"]
            end(raw, *mine)
            until(raw, "again", lambda now: now["total"] == now["available"] == 4)
            # Those that waited when it happened are gone: as many directories as there are sandboxes.
            deadline = time.monotonic() + REST_SECONDS
            while len(waiting_processes(server)) > 4 + warm_by_itself(raw):
                assert time.monotonic() < deadline, waiting_processes(server)
                time.sleep(0.1)


def living(server, role):
    """A process of the server, which is started again when it was killed."""
    deadline = time.monotonic() + REST_SECONDS
    while (found := server.child(role)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


def warm_by_itself(raw, *states):
    """How many wait because such were asked for, or are being made to."""
    text = raw.get("/../metrics").text
    found = [line for line in text.splitlines() if line.startswith('pool_sandboxes{pool="",')]
    chosen = [line for line in found if not states or any(f'state="{state}"' in line for state in states)]
    return sum(int(line.rsplit(" ", 1)[1]) for line in chosen)


def test_claims_under_a_killed_server_are_whole_or_nothing(tmp_path_factory):
    """Between taken, configured and answered: whatever was acknowledged runs, and nobody has two."""
    with osb.running(tmp_path_factory, "osb-pool-cut") as server:
        headers = {"OPEN-SANDBOX-API-KEY": server.key}
        httpx.post(
            f"http://{server.direct}/v1/pools",
            headers=headers,
            json={"name": "cut", "template": {"image": {"uri": "host"}}, "capacitySpec": capacity(6, pool_max=100)},
        ).raise_for_status()

        def claim(_):
            body = {"extensions": {"poolRef": "cut"}, "timeout": 300}
            try:
                answer = httpx.post(f"http://{server.direct}/v1/sandboxes", headers=headers, json=body, timeout=30)
                return answer.json()["id"] if answer.status_code == 202 else None
            except httpx.HTTPError:
                return None

        acknowledged = []
        for turn in range(6):
            with plain(server) as raw:
                until(raw, "cut", lambda now: now["available"] >= 3)
            with concurrent.futures.ThreadPoolExecutor(6) as many:
                claims = [many.submit(claim, place) for place in range(6)]
                time.sleep(0.002 * turn)
                os.kill(living(server, "api-server"), signal.SIGKILL)
                acknowledged += [made for made in (job.result() for job in claims) if made]
            deadline = time.monotonic() + REST_SECONDS
            while True:
                try:
                    if httpx.get(f"http://{server.direct}/health").status_code == 200:
                        break
                except httpx.HTTPError:
                    pass
                assert time.monotonic() < deadline
                time.sleep(0.02)
        with plain(server) as raw:
            assert len(acknowledged) == len(set(acknowledged)) > 0
            for made in acknowledged:
                assert run(raw, made, "hostname") == made
            listed = raw.get("/sandboxes", params={"pageSize": 200}).json()
            ours = {item["id"] for item in listed["items"]}
            assert set(acknowledged) <= ours
            end(raw, *({"id": made} for made in ours))
            raw.delete("/pools/cut")
            deadline = time.monotonic() + REST_SECONDS
            while len(waiting_processes(server)) > warm_by_itself(raw):
                assert time.monotonic() < deadline, waiting_processes(server)
                time.sleep(0.1)


def test_nothing_is_kept_before_the_first_create_and_then_what_was_asked_for(tmp_path_factory):
    with osb.running(tmp_path_factory, "osb-warm") as server, plain(server) as raw:
        assert raw.get("/capabilities").json()["features"]["warm"] is True
        time.sleep(0.5)
        assert waiting_processes(server) == set() and warm_by_itself(raw) == 0
        first = raw.post("/sandboxes", json=minimal(), params={"wait": "30"}).json()
        deadline = time.monotonic() + REST_SECONDS
        while warm_by_itself(raw, "ready") != 1 or len(waiting_processes(server)) != 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        waiting = waiting_processes(server) - {first["id"]}
        second = raw.post("/sandboxes", json=minimal(env={"A": "1"}), params={"wait": "30"}).json()
        assert {second["id"]} == waiting
        assert run(raw, second["id"], "echo $A") == "1"
        # Another kind: made for itself.
        third = raw.post("/sandboxes", json=minimal(resourceLimits={"disk": "64Mi"}), params={"wait": "30"})
        assert third.status_code in (202, 400)
        if third.status_code == 202:
            end(raw, third.json())
        end(raw, first, second)


def test_the_setting_turns_it_off(tmp_path_factory):
    with osb.running(tmp_path_factory, "osb-cold", "[warm]\nmax_memory_bytes = 0\n") as server, plain(server) as raw:
        assert raw.get("/capabilities").json()["features"]["warm"] is False
        made = [raw.post("/sandboxes", json=minimal(), params={"wait": "30"}).json() for _ in range(3)]
        time.sleep(0.5)
        assert waiting_processes(server) == {sandbox["id"] for sandbox in made}
        end(raw, *made)


def test_the_program_shows_and_changes_pools(raw, server):
    said = server.cli("pool", "create", "words", "--ready", "1..2", "--max", "5")
    assert said.returncode == 0 and "osb sandbox create --pool words" in said.stdout, said.stderr
    until(raw, "words", lambda now: now["available"] >= 1)
    assert "words" in server.cli("pool", "list").stdout
    shown = json.loads(server.cli("pool", "get", "words", "-o", "json").stdout)
    assert shown["capacitySpec"] == {"bufferMin": 1, "bufferMax": 2, "poolMax": 5, "poolMin": 0}
    changed = json.loads(server.cli("pool", "update", "words", "--max", "6", "-o", "json").stdout)
    assert changed["capacitySpec"] == {"bufferMin": 1, "bufferMax": 2, "poolMax": 6, "poolMin": 0}
    ran = server.cli("run", "--pool", "words", "--", "echo", "from a pool")
    assert (ran.returncode, ran.stdout.strip()) == (0, "from a pool"), ran.stderr
    made = server.cli("sandbox", "create", "--pool", "words", "-o", "json")
    assert json.loads(made.stdout)["allocation"]["poolRef"] == "words", made.stderr
    assert status(raw, "words")["hits"] >= 1
    server.cli("sandbox", "kill", json.loads(made.stdout)["id"])
    assert server.cli("pool", "rm", "words").returncode == 0
    gone = server.cli("pool", "get", "words")
    assert gone.returncode != 0 and "there is no pool" in gone.stderr
    assert "--ready" in server.cli("pool", "create", "--help").stdout


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_published_client_builds_a_template_and_creates_from_it(raw, server, kind):
    from opensandbox.models.templates import CreateTemplateRequest, TemplateFilter

    client = clients.Client(kind, server.domain, server.key)
    manager = client.manager()
    asked = CreateTemplateRequest(
        image="host", publish=f"tools-{kind}", format="native", env={"FROM": "template"}, metadata={"kind": kind}
    )
    template = manager.create_template(asked)
    assert template.template_id.startswith("tpl-") and template.format == "native"
    deadline = time.monotonic() + REST_SECONDS
    while manager.get_template(template.template_id).status.phase != "Succeeded":
        assert time.monotonic() < deadline
    listed = manager.list_templates(TemplateFilter(metadata={"kind": kind}))
    assert [item.template_id for item in listed.template_infos] == [template.template_id]
    create = (Sandbox if client.loop else SandboxSync).create_from_template
    sandbox = client._call(create, template.template_id, timeout=timedelta(minutes=5), metadata={"a": "b"})
    client.made.append(sandbox)
    out = sandbox.commands.run("echo $FROM")
    assert out.logs.stdout[0].text.strip() == "template"
    manager.delete_template(template.template_id)
    gone = raw.get(f"/templates/{template.template_id}")
    assert (gone.status_code, gone.json()["code"]) == (404, "SANDBOX::TEMPLATE_NOT_FOUND")
    client.close()


def test_a_template_refuses_by_name_what_does_not_exist_here(raw):
    good = {"image": "host", "publish": "refused"}
    for change, wanted, named in [
        ({"format": "overlaybd"}, 400, "format"),
        ({"readiness": {"probe": "cmd://true"}}, 400, "readiness"),
        ({"publish": "s3://bucket/place"}, 400, "publish"),
        ({"publish": " "}, 422, "publish"),
        ({"resourceLimits": {"cpu": "much"}}, 400, "resourceLimits.cpu"),
        ({"colour": "blue"}, 422, "colour"),
    ]:
        answer = raw.post("/templates", json={**good, **change})
        assert answer.status_code == wanted and named in answer.json()["message"], answer.text
    assert raw.get("/templates", params={"page": "0"}).status_code == 422
    assert raw.delete("/templates/tpl-nope").json()["code"] == "SANDBOX::TEMPLATE_NOT_FOUND"
    made = raw.post("/templates", json=good)
    assert made.status_code == 201 and made.json()["status"]["phase"] == "Pending", made.text
    again = raw.post("/templates", json=good)
    assert (again.status_code, again.json()["code"]) == (409, "SANDBOX::TEMPLATE_CONFLICT")
    template = made.json()["templateId"]
    for body, wanted in [
        ({"templateId": template}, 422),
        ({"templateId": template, "timeout": 300, "env": {"A": "1"}}, 422),
        ({"templateId": "tpl-nope", "timeout": 300}, 404),
        ({"templateId": template, "timeout": 300, "extensions": {"poolRef": "x"}}, 400),
    ]:
        answer = raw.post("/sandboxes", json=body)
        assert answer.status_code == wanted, answer.text
    assert raw.delete(f"/templates/{template}").status_code == 204


@pytest.fixture(scope="module")
def redis_port(tmp_path_factory):
    program = shutil.which("redis-server")
    assert program, "redis-server is not installed"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    directory = tmp_path_factory.mktemp("redis")
    process = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(directory)],
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + REST_SECONDS
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield port
    process.terminate()
    process.wait(10)


@pytest.mark.parametrize("store", ["memory", "redis"])
def test_the_pools_of_the_published_client_work_unmodified(raw, server, store, request):
    """They are the client's own: it keeps sandboxes that run, and the server knows of none of it."""
    if store == "memory":
        from opensandbox.pool import InMemoryPoolStateStore

        state = InMemoryPoolStateStore()
    else:
        import redis
        from opensandbox.pool_redis import RedisPoolStateStore

        state = RedisPoolStateStore(redis.Redis(port=request.getfixturevalue("redis_port"), decode_responses=True))
    mine = SandboxPoolSync(
        pool_name=f"client-{store}",
        owner_id="test",
        max_idle=2,
        state_store=state,
        connection_config=ConnectionConfigSync(domain=server.domain, api_key=server.key),
        creation_spec=PoolCreationSpec(image="host"),
    )
    mine.start()
    try:
        deadline = time.monotonic() + REST_SECONDS
        while mine.snapshot().idle_count < 2:
            assert time.monotonic() < deadline, mine.snapshot()
            time.sleep(0.05)
        sandbox = mine.acquire(sandbox_timeout=timedelta(minutes=5), policy=AcquirePolicy.FAIL_FAST)
        out = sandbox.commands.run("echo from a pool of the client")
        assert out.logs.stdout[0].text.strip() == "from a pool of the client"
        sandbox.kill()
        sandbox.close()
    finally:
        mine.release_all_idle()
        mine.shutdown()
    left = {item["id"] for item in raw.get("/sandboxes", params={"state": "Running", "pageSize": 200}).json()["items"]}
    assert not left, left
