"""Snapshots and forks through the published client: what is kept, what is not, and what happens when things die."""

import json
import os
import subprocess
import threading
import time
import uuid

import httpx
import pytest
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.sandboxes import PVC, NetworkPolicy, NetworkRule, SnapshotFilter, Volume

import osb
from conftest import minimal

# Seconds in which a snapshot must be ready; the target is below one, a loaded machine is slower.
READY_SECONDS = 60
PLANTED = "planted-51c0ffee"
# A variable is no secret: it is kept with its sandbox, and with no other.
VARIABLE = "variable-8e0d4a"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with osb.running(tmp_path_factory, "osb-snapshots") as started:
        yield started


def said(sandbox, command, **options):
    execution = sandbox.commands.run(command, opts=RunCommandOpts(**options))
    return "".join(message.text for message in execution.logs.stdout + execution.logs.stderr)


def ready(raw, snapshot_id):
    deadline = time.monotonic() + READY_SECONDS
    while True:
        found = raw.get(f"/snapshots/{snapshot_id}").json()
        if found["status"]["state"] != "Creating":
            assert found["status"]["state"] == "Ready", found
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


def taken(raw, sandbox, name=None):
    return ready(raw, sandbox.create_snapshot(name).id)


def restored(client, snapshot, **arguments):
    return client.create(None, snapshot_id=snapshot["id"], **arguments)


def test_a_snapshot_is_taken_found_and_restored_by_the_client(client, raw):
    name = f"s-{uuid.uuid4().hex[:12]}"
    sandbox = client.create(env={"OWN": VARIABLE}, metadata={"team": "x"})
    assert said(sandbox, "mkdir -p /workspace/a; echo kept > /workspace/a/f; rm /etc/passwd; echo x > /usr/local/bin/tool") == ""
    made = sandbox.create_snapshot(name)
    assert (made.sandbox_id, made.name, made.status.state) == (sandbox.id, name, "Creating")
    shown = ready(raw, made.id)
    manager = client.manager()
    assert manager.get_snapshot(made.id).status.state == "Ready"
    listed = manager.list_snapshots(SnapshotFilter(name=name, states=["Ready"])).snapshot_infos
    assert [item.id for item in listed] == [made.id]
    assert said(sandbox, "cat /workspace/a/f") == "kept\n", "the source goes on"
    copy = restored(client, shown, env={"MINE": "1"})
    assert said(copy, "cat /workspace/a/f /usr/local/bin/tool; test -e /etc/passwd || echo gone; env") .startswith("kept\nx\ngone\n")
    assert VARIABLE not in said(copy, "env")
    detail = raw.get(f"/sandboxes/{copy.id}").json()
    assert (detail["snapshotId"], detail.get("image"), detail.get("metadata")) == (made.id, None, None)
    assert said(copy, "hostname").strip() == copy.id
    with pytest.raises(SandboxApiException) as caught:
        manager.delete_snapshot(made.id)
    assert (caught.value.status_code, caught.value.error.code) == (409, "SNAPSHOT::DELETE_CONFLICT")
    copy.kill()
    manager.delete_snapshot(made.id)
    assert raw.get(f"/snapshots/{made.id}").status_code == 404


def test_ex_024_odd_names_whiteouts_sparse_files_and_clashes(one_client, raw, server):
    sandbox = one_client.create()
    script = (
        "cd /workspace && d=d; for i in $(seq 300); do mkdir $d && cd $d; done; echo deep > f; cd /workspace;"
        " printf x > \"$(printf 'a\\nb\\377')\"; truncate -s 3G sparse; echo end >> sparse; ln sparse hard; ln -s /etc/passwd link;"
        " mkdir -p opaque/lower; rm -rf /var/log; mkdir /var/log; touch /var/log/new; chown 1000:1000 hard; chmod 4755 hard"
    )
    assert said(sandbox, script) == ""
    name = f"s-{uuid.uuid4().hex[:12]}"
    shown = taken(raw, sandbox, name)
    assert shown["sizeBytes"] < 1 << 20, "holes cost nothing"
    clash = raw.post(f"/sandboxes/{sandbox.id}/snapshots", json={"name": name})
    assert (clash.status_code, clash.json()["code"]) == (409, "SNAPSHOT::RUNTIME_CREATE_CONFLICT")
    copy = restored(one_client, shown)
    check = "cd /workspace; stat -c '%s %h %u %a' sparse; tail -c 4 sparse; ls /var/log; readlink link; ls | wc -l; find . -name f -exec cat {} +"
    assert said(copy, check) == "3221225476 2 1000 4755\nend\nnew\n/etc/passwd\n7\ndeep\n"


def test_os_111_what_was_closed_just_now_is_there_after_five_rounds(one_client, raw):
    sandbox = one_client.create()
    for number in range(5):
        said(sandbox, f"echo {number} >> /workspace/log")
        shown = taken(raw, sandbox)
        assert raw.post(f"/sandboxes/{sandbox.id}/pause").status_code == 202
        assert raw.post(f"/sandboxes/{sandbox.id}/resume").status_code == 202
    expected = "".join(f"{number}\n" for number in range(5))
    assert said(sandbox, "cat /workspace/log") == expected
    assert said(restored(one_client, shown), "cat /workspace/log") == expected


def test_a_paused_sandbox_is_snapshotted_and_stays_paused(one_client, raw):
    sandbox = one_client.create()
    said(sandbox, "echo kept > /workspace/f")
    assert raw.post(f"/sandboxes/{sandbox.id}/pause").status_code == 202
    shown = taken(raw, sandbox)
    assert shown["frozenMs"] == 0
    assert raw.get(f"/sandboxes/{sandbox.id}").json()["status"]["state"] == "Paused"
    assert said(restored(one_client, shown), "cat /workspace/f") == "kept\n"
    sandbox.kill()
    gone = raw.post(f"/sandboxes/{sandbox.id}/snapshots")
    assert gone.status_code == 404


def test_os_110_network_policy_and_vault_are_on_and_stay_behind(one_client, raw, server):
    policy = NetworkPolicy(defaultAction="deny", egress=[NetworkRule(action="allow", target="a.example.org")])
    sandbox = raw.post("/sandboxes?wait=20", json=minimal(
        networkPolicy=policy.model_dump(by_alias=True, exclude_none=True), credentialProxy={"enabled": True}
    )).json()
    assert sandbox["status"]["state"] == "Running", sandbox
    source = one_client.connect(sandbox["id"])
    vault = {
        "credentials": [{"name": "t", "source": {"value": PLANTED}}],
        "bindings": [{"name": "b", "match": {"hosts": ["a.example.org"], "schemes": ["https"], "ports": [443]},
                      "auth": {"type": "bearer", "credential": "t"}}],
    }
    endpoint = raw.get(f"/sandboxes/{sandbox['id']}/endpoints/18080").json()
    with httpx.Client(base_url=f"http://{endpoint['endpoint']}", headers=endpoint.get("headers", {})) as egress:
        put = egress.post("/credential-vault", json=vault)
    assert put.status_code in (200, 201), put.text
    authority = said(source, "cat /opt/opensandbox/mitmproxy-ca-cert.pem")
    assert "BEGIN CERTIFICATE" in authority
    said(source, "echo kept > /workspace/f")
    shown = taken(raw, source)
    places = [path for path in server.data.rglob("layers") if path.is_dir()]
    assert places
    key = authority.split("-----")[2].strip().splitlines()[1]
    digest = shown["digest"].removeprefix("sha256:")
    for place in places:
        own = place / digest
        if own.exists():
            for text in (PLANTED, key):
                found = subprocess.run(["grep", "-rlaF", text, own], capture_output=True, text=True)
                assert found.stdout == "", (text, found.stdout)
    for database in server.data.rglob("*.db*"):
        assert PLANTED.encode() not in database.read_bytes()
    copy = restored(one_client, shown)
    assert said(copy, "cat /workspace/f; ls /opt/opensandbox 2>/dev/null") == "kept\n"
    other = raw.post("/sandboxes?wait=20", json=minimal(
        image=..., snapshotId=shown["id"], credentialProxy={"enabled": True},
        networkPolicy={"defaultAction": "deny", "egress": [{"action": "allow", "target": "b.example.org"}]},
    )).json()
    assert other["status"]["state"] == "Running", other
    fresh = said(one_client.connect(other["id"]), "cat /opt/opensandbox/mitmproxy-ca-cert.pem")
    assert "BEGIN CERTIFICATE" in fresh and fresh != authority, "an authority of its own"
    for made in (sandbox["id"], other["id"]):
        raw.delete(f"/sandboxes/{made}")


def test_limits_volumes_and_labels_are_the_new_sandboxs_own(one_client, raw):
    volume = f"v-{uuid.uuid4().hex[:12]}"
    sandbox = one_client.create(volumes=[Volume(name="data", pvc=PVC(claim_name=volume), mount_path="/data")])
    said(sandbox, "echo shared > /data/f; echo mine > /workspace/f")
    copy = restored(one_client, taken(raw, sandbox), resource={"cpu": "1", "memory": "128Mi", "pids": "64"})
    assert said(copy, "ls /data; cat /workspace/f") == "mine\n", "what was on the volume stays there"
    receipt = raw.get(f"/sandboxes/{copy.id}").json()["receipt"]
    assert receipt["limits"]["memory"]["value"] == 128 << 20


def test_a_fork_is_many_sandboxes_with_the_files_of_one(one_client, raw):
    sandbox = one_client.create(env={"A": "1", "B": "1"}, metadata={"team": "x"}, resource={"memory": "96Mi"})
    said(sandbox, "echo kept > /workspace/f; printf 0123456789abcdef0123456789abcdef > /etc/machine-id")
    answer = raw.post(f"/sandboxes/{sandbox.id}/fork?wait=60", json={"count": 5, "env": {"B": "2"}, "metadata": {"n": "1"}})
    assert answer.status_code == 202, answer.text
    body = answer.json()
    assert (body["accepted"], body["refused"]) == (5, 0)
    seen = set()
    for item in body["items"]:
        fork = one_client.connect(item["sandbox"]["id"])
        one_client.made.append(fork)
        words = said(fork, "cat /workspace/f; echo $A $B; hostname; cat /etc/machine-id; cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max").split()
        assert words[:4] == ["kept", "1", "2", fork.id]
        assert words[5] == str(96 << 20)
        seen.add(words[4])
    assert len(seen) == 5 and "0123456789abcdef0123456789abcdef" not in seen, "identities are made anew"
    assert raw.get("/snapshots", params={"sandboxId": sandbox.id}).json()["items"] == []
    for query in ("page=0", "pageSize=0", "pageSize=201", "page=x"):
        refused = raw.get(f"/snapshots?{query}")
        assert refused.status_code in (400, 422) and query.split("=")[0] in refused.json()["message"], refused.text


def test_ex_024_several_are_taken_at_once_while_programs_write(one_client, raw):
    sandboxes = [one_client.create() for _ in range(5)]
    for number, sandbox in enumerate(sandboxes):
        said(sandbox, f"echo {number} > /workspace/n; (i=0; while :; do echo $i > /workspace/i.new; mv /workspace/i.new /workspace/i; i=$((i+1)); done) >/dev/null 2>&1 &")
    shown = [None] * 5

    def take(number):
        made = raw.post(f"/sandboxes/{sandboxes[number].id}/snapshots").json()
        shown[number] = ready(raw, made["id"])

    threads = [threading.Thread(target=take, args=(number,)) for number in range(5)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for number, snapshot in enumerate(shown):
        assert said(restored(one_client, snapshot), "cat /workspace/n; cat /workspace/i | wc -l") == f"{number}\n1\n"


def test_os_109_every_process_may_be_killed_and_records_and_layers_agree(tmp_path_factory):
    with osb.running(tmp_path_factory, "osb-snapshots-kill") as own:
        def http():
            return httpx.Client(base_url=f"http://{own.direct}/v1", headers={"OPEN-SANDBOX-API-KEY": own.key}, timeout=60)

        with http() as api:
            made = api.post("/sandboxes?wait=20", json=minimal(
                entrypoint=["sh", "-c", "head -c 200000000 /dev/urandom > /workspace/big; exec sleep infinity"])).json()
            kept = ready(api, api.post(f"/sandboxes/{made['id']}/snapshots").json()["id"])
            for victim in ("api-server", "jailer", None):
                begun = api.post(f"/sandboxes/{made['id']}/snapshots")
                assert begun.status_code == 202, begun.text
                if victim is None:
                    break
                os.kill(own.child(victim), 9)
                deadline = time.monotonic() + READY_SECONDS
                while True:
                    try:
                        found = api.get(f"/snapshots/{begun.json()['id']}").json()
                        state = api.get(f"/sandboxes/{made['id']}").json()["status"]["state"]
                        if found["status"]["state"] in ("Ready", "Failed"):
                            break
                    except httpx.TransportError:
                        pass
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
                assert found["status"]["message"] and state == "Running"
            last = begun.json()["id"]
        own.kill()
        own.start()
        with http() as api:
            found = api.get(f"/snapshots/{last}").json()
            assert found["status"]["state"] in ("Ready", "Failed"), found
            all_of = api.get("/snapshots", params={"pageSize": 200}).json()["items"]
            assert kept["id"] in [item["id"] for item in all_of if item["status"]["state"] == "Ready"]
            again = ready(api, api.post(f"/sandboxes/{made['id']}/snapshots").json()["id"])
            copy = api.post("/sandboxes?wait=20", json=minimal(image=..., snapshotId=again["id"])).json()
            assert copy["status"]["state"] == "Running", copy
            for sandbox in (made, copy):
                assert api.delete(f"/sandboxes/{sandbox['id']}").status_code == 204
            for item in api.get("/snapshots", params={"pageSize": 200}).json()["items"]:
                assert api.delete(f"/snapshots/{item['id']}").status_code == 204
        records = [path for path in own.data.rglob("snapshots/*.json")]
        noted = [path for path in own.data.rglob("layers/*/snapshot")]
        drafts = [path for path in own.data.rglob("layers/.transient-*")]
        assert (records, noted, drafts) == ([], [], [])


def test_the_command_line_takes_lists_restores_forks_and_removes(server, raw):
    def cli(*words):
        done = server.cli(*words, environment={"OPEN_SANDBOX_DOMAIN": server.direct, "OPEN_SANDBOX_API_KEY": server.key})
        return done.returncode, done.stdout, done.stderr

    name = f"s-{uuid.uuid4().hex[:12]}"
    sandbox = json.loads(cli("sandbox", "create", "-o", "json")[1])["id"]
    assert cli("command", "run", sandbox, "--", "sh", "-c", "echo kept > /workspace/f")[0] == 0
    code, out, err = cli("snapshot", "create", sandbox, "--name", name, "-o", "json")
    assert code == 0, err
    snapshot = json.loads(out)
    assert snapshot["status"]["state"] == "Ready" and snapshot["name"] == name
    code, out, err = cli("snapshot", "list", "--name", name)
    assert code == 0 and snapshot["id"] in out and "Ready" in out, err
    assert name in cli("snapshot", "get", snapshot["id"], "-o", "yaml")[1]
    assert cli("run", "--snapshot", snapshot["id"], "--", "cat", "/workspace/f")[1] == "kept\n"
    code, out, err = cli("sandbox", "create", "--snapshot", snapshot["id"], "-o", "json")
    assert code == 0, err
    copy = json.loads(out)
    assert copy["snapshotId"] == snapshot["id"]
    code, out, err = cli("snapshot", "rm", snapshot["id"])
    assert code == 1 and copy["id"] in out, (out, err)
    code, out, err = cli("fork", sandbox, "-n", "2", "-e", "A=1", "-o", "json")
    assert code == 0, err
    forks = [item["sandbox"]["id"] for item in json.loads(out)["items"]]
    assert len(forks) == 2
    assert cli("sandbox", "kill", sandbox, copy["id"], *forks)[0] == 0
    assert cli("snapshot", "rm", snapshot["id"])[0] == 0
    assert cli("snapshot", "get", snapshot["id"])[0] != 0
    assert "stands still" in cli("snapshot", "create", "--help")[1]
    alone = {"OSB_DATA_DIR": str(server.scratch / "alone")}
    refused = server.cli("run", "--snapshot", snapshot["id"], "--", "true", environment=alone)
    assert refused.returncode == 2 and "server" in refused.stderr
