"""Volumes through the published client: host paths under an allow-list, and named volumes that outlive sandboxes."""

import json
import os
import shutil
import time
import uuid

import pytest
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.sandboxes import PVC, Host, Volume

import osb
from conftest import minimal


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A directory of the machine that may be mounted, and beside it one that may not."""
    top = tmp_path_factory.mktemp("host")
    for parent in (top, top.parent, top.parent.parent):
        parent.chmod(0o755)
    (top / "shared").mkdir()
    (top / "shared").chmod(0o777)
    (top / "private").mkdir()
    (top / "private" / "key").write_text("planted")
    return top / "shared"


@pytest.fixture(scope="module")
def server(shared, tmp_path_factory):
    configuration = f'[storage]\nallowed_host_paths = ["{shared}"]\n'
    with osb.running(tmp_path_factory, "osb-volumes", configuration) as started:
        yield started


@pytest.fixture
def name():
    return f"v-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def limited(raw):
    """Whether size limits can be kept here; the answer is data, not a guess."""
    return raw.get("/capabilities").json()["runtime"]["volumes"]["sizeLimit"] != "none"


def named(claim, mount_path="/data", **fields):
    pvc = {key: fields.pop(key) for key in list(fields) if key in ("storage", "delete_on_sandbox_termination", "create_if_not_exists")}
    return Volume(name="data", pvc=PVC(claim_name=claim, **pvc), mount_path=mount_path, **fields)


def host(path, mount_path="/host", **fields):
    return Volume(name="host", host=Host(path=str(path)), mount_path=mount_path, **fields)


def said(sandbox, command, **options):
    execution = sandbox.commands.run(command, opts=RunCommandOpts(**options))
    return "".join(message.text for message in execution.logs.stdout + execution.logs.stderr)


def names(raw):
    return [volume["name"] for volume in raw.get("/volumes").json()["items"]]


def refused(client, **arguments):
    with pytest.raises(SandboxApiException) as caught:
        client.create(**arguments)
    return caught.value


def test_a_named_volume_keeps_files_and_their_owners_for_the_next_sandbox(client, raw, name):
    first = client.create(volumes=[named(name)])
    assert said(first, "chmod 777 /data") == ""
    assert said(first, "echo kept > /data/mine; stat -c '%u %g' /data/mine", uid=1000, gid=1000).strip() == "1000 1000"
    first.kill()
    assert name in names(raw)
    second = client.create(volumes=[named(name, "/elsewhere")])
    assert said(second, "stat -c '%u %g' /elsewhere/mine; cat /elsewhere/mine").split() == ["1000", "1000", "kept"]
    assert said(second, "echo more >> /elsewhere/mine && cat /elsewhere/mine", uid=1000, gid=1000).split() == ["kept", "more"]
    second.kill()
    assert raw.delete(f"/volumes/{name}").status_code == 204


def test_a_host_path_is_shared_with_the_machine(one_client, server, shared, name):
    place = shared / name
    sandbox = one_client.create(volumes=[host(place), host(shared, "/all").model_copy(update={"name": "all", "read_only": True})])
    assert place.is_dir(), "what is missing is made"
    said(sandbox, "chmod 777 /host; echo out > /host/from-inside")
    said(sandbox, "touch /host/mine", uid=1000, gid=1000)
    assert (place / "from-inside").read_text() == "out\n"
    (place / "from-outside").write_text("in\n")
    assert said(sandbox, f"cat /host/from-outside /all/{name}/from-inside") == "in\nout\n"
    assert "Read-only file system" in said(sandbox, "touch /all/x")
    if not server.user:
        assert (place / "mine").stat().st_uid == 1000
    again = one_client.create(volumes=[host(shared, sub_path=name)])
    assert said(again, "stat -c %u /host/mine").strip() == "1000"


@pytest.mark.parametrize("path", ["/var/run/docker.sock", "/", "/etc", "/proc"])
def test_os_011_host_paths_beside_what_is_allowed_are_refused(one_client, raw, path):
    before = raw.get("/sandboxes").json()["pagination"]["totalItems"]
    failure = refused(one_client, volumes=[host(path)])
    assert (failure.status_code, failure.error.code) == (400, "VOLUME::HOST_PATH_NOT_ALLOWED")
    assert path == "/" or path not in str(failure)
    assert raw.get("/sandboxes").json()["pagination"]["totalItems"] == before


@pytest.mark.parametrize("target", ["../private", "/etc", "/"])
def test_os_011_attack_13_a_link_that_leads_out_is_refused(one_client, shared, name, target):
    (shared / name).symlink_to(target)
    for volume in (host(shared / name), host(shared, sub_path=name)):
        failure = refused(one_client, volumes=[volume])
        assert failure.status_code == 400
        assert failure.error.code in ("VOLUME::HOST_PATH_NOT_ALLOWED", "VOLUME::INVALID_SUB_PATH")
        assert "private" not in str(failure) and str(shared) not in str(failure)


def test_os_010_a_create_that_fails_undoes_what_it_made(one_client, raw, shared, name):
    kept = f"{name}-kept"
    assert raw.post("/volumes", json={"name": kept}).status_code == 201
    fresh = named(name, delete_on_sandbox_termination=True)
    bad = host("/etc")
    assert refused(one_client, volumes=[fresh, bad]).error.code == "VOLUME::HOST_PATH_NOT_ALLOWED"
    (shared / f"{name}-link").symlink_to("../private")
    old = named(kept, "/old", delete_on_sandbox_termination=True).model_copy(update={"name": "old"})
    late = host(shared / f"{name}-link")
    assert refused(one_client, volumes=[fresh, old, late]).error.code == "VOLUME::HOST_PATH_NOT_ALLOWED"
    missing = host(shared / name / "deep").model_copy(update={"name": "missing", "mount_path": "/missing"})
    late = host(shared, sub_path=f"{name}-link")
    assert refused(one_client, volumes=[missing, late]).error.code == "VOLUME::INVALID_SUB_PATH"
    assert not (shared / name).exists()
    deadline = time.monotonic() + 10
    while name in names(raw):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert kept in names(raw), "what was there before is not touched, whatever the flag says"
    assert raw.delete(f"/volumes/{kept}").status_code == 204


def test_ex_027_a_volume_goes_with_its_sandbox_and_its_name_is_free(client, raw, name):
    for _ in range(2):
        sandbox = client.create(volumes=[named(name, delete_on_sandbox_termination=True)])
        assert said(sandbox, "ls -A /data; echo x > /data/f") == "", "it is a new one"
        assert raw.get(f"/volumes/{name}").json()["deleteOnSandboxTermination"] is True
        sandbox.kill()
        assert raw.get(f"/volumes/{name}").status_code == 404


def test_ex_027_a_volume_removed_behind_the_servers_back_is_made_again(one_client, raw, server, name):
    assert raw.post("/volumes", json={"name": name}).status_code == 201
    shutil.rmtree(server.data / "volumes" / name)
    sandbox = one_client.create(volumes=[named(name)])
    assert said(sandbox, "echo x > /data/f && cat /data/f") == "x\n"
    sandbox.kill()
    shutil.rmtree(server.data / "volumes" / name)
    assert raw.delete(f"/volumes/{name}").status_code == 204
    assert not list((server.data / "volumes").glob(".*")), "nothing half made or half removed"


def test_a_volume_is_shared_and_not_removed_while_it_is_used(client, raw, name):
    first = client.create(volumes=[named(name, delete_on_sandbox_termination=True)])
    second = client.create(volumes=[named(name, read_only=True)])
    assert said(first, "echo hello > /data/f") == ""
    assert said(second, "cat /data/f") == "hello\n"
    assert "Read-only file system" in said(second, "touch /data/g")
    told = raw.get(f"/volumes/{name}").json()
    assert sorted(told["sandboxes"]) == sorted([first.id, second.id]) and told["createdBy"] == first.id
    answer = raw.delete(f"/volumes/{name}")
    assert (answer.status_code, answer.json()["code"]) == (409, "VOLUME::IN_USE")
    first.kill()
    assert said(second, "cat /data/f") == "hello\n", "nobody takes it from under the other"
    second.kill()
    assert raw.delete(f"/volumes/{name}").status_code == 204


def test_a_size_limit_holds_or_is_refused_by_name(one_client, raw, name, limited):
    wanted = named(name, storage="32Mi")
    if not limited:
        failure = refused(one_client, volumes=[wanted])
        assert failure.status_code == 400 and "volumes[0].pvc.storage" in str(failure)
        assert raw.post("/volumes", json={"name": name, "storage": "32Mi"}).status_code == 400
        assert name not in names(raw)
        return
    first, second = one_client.create(volumes=[wanted]), one_client.create(volumes=[wanted])
    assert "No space left on device" in said(first, "dd if=/dev/zero of=/data/fill bs=1M")
    assert "No space left on device" in said(second, "dd if=/dev/zero of=/data/more bs=1M count=4")
    assert raw.get(f"/volumes/{name}").json()["sizeBytes"] == 32 << 20
    assert refused(one_client, volumes=[named(name, storage="64Mi")]).status_code == 409
    assert said(first, "rm /data/fill /data/more; echo fits > /data/f; sync /data/f; cat /data/f") == "fits\n"
    first.kill(), second.kill()
    third = one_client.create(volumes=[named(name)])
    assert said(third, "cat /data/f") == "fits\n"


def test_a_sub_path_is_made_and_cannot_lead_out(one_client, name):
    first = one_client.create(volumes=[named(name, sub_path="a/b")])
    said(first, "echo deep > /data/f")
    whole = one_client.create(volumes=[named(name)])
    assert said(whole, "cat /data/a/b/f; ln -s /etc /data/out; ln -s .. /data/up") == "deep\n"
    for sub_path in ("out", "up", "up/up"):
        failure = refused(one_client, volumes=[named(name, sub_path=sub_path)])
        assert (failure.status_code, failure.error.code) == (400, "VOLUME::INVALID_SUB_PATH")


def test_os_117_every_kind_and_null_of_the_client_is_understood(client, raw, name):
    body = named(name).model_dump(by_alias=True)
    assert body["host"] is None and body["pvc"]["storage"] is None, "nulls are sent"
    answer = raw.post("/sandboxes?wait=20", json=minimal(volumes=[body]))
    assert answer.status_code == 202 and answer.json()["status"]["state"] == "Running", answer.text
    receipt = answer.json()["receipt"]["mounts"]
    assert [(mount["name"], mount["kind"], mount["mountPath"]) for mount in receipt] == [("data", "named", "/data")]
    raw.delete(f"/sandboxes/{answer.json()['id']}")
    assert refused(client, volumes=[host("C:\\data")]).error.code == "VOLUME::INVALID_HOST_PATH"
    missing = named(f"{name}-x", create_if_not_exists=False)
    assert refused(client, volumes=[missing]).error.code == "VOLUME::PVC_NOT_FOUND"


def test_os_022_what_the_main_process_writes_at_its_end_is_on_the_volume(one_client, raw, name):
    script = "trap 'echo ended > /data/end; exit 0' TERM; while :; do sleep 0.05; done"
    sandbox = one_client.create(volumes=[named(name)], entrypoint=["sh", "-c", script])
    child = sandbox.commands.run("sleep 1000 >/dev/null 2>&1 & echo $!")
    assert child.exit_code == 0
    sandbox.kill()
    assert raw.delete(f"/sandboxes/{sandbox.id}").status_code == 404
    after = one_client.create(volumes=[named(name)])
    assert said(after, "cat /data/end") == "ended\n"


def test_volumes_live_through_pause_and_the_death_of_every_process(tmp_path_factory, name, pauses):
    with osb.running(tmp_path_factory, "osb-volumes-kill") as own:
        import httpx

        def http():
            return httpx.Client(
                base_url=f"http://{own.direct}/v1", headers={"OPEN-SANDBOX-API-KEY": own.key}, timeout=60
            )

        body = minimal(volumes=[named(name, delete_on_sandbox_termination=True).model_dump(by_alias=True)])
        with http() as api:
            made = api.post("/sandboxes?wait=20", json=body).json()
            assert made["status"]["state"] == "Running", made
            assert api.post("/volumes", json={"name": f"{name}-own"}).status_code == 201
        os.kill(own.child("jailer"), 9)
        own.kill()
        own.start()
        with http() as api:
            assert api.get(f"/volumes/{name}").json()["sandboxes"] == [made["id"]]
            assert api.get(f"/volumes/{name}-own").json()["sandboxes"] == []
            if pauses:
                assert api.post(f"/sandboxes/{made['id']}/pause").status_code == 202
                assert api.post(f"/sandboxes/{made['id']}/resume").status_code == 202
            assert api.delete(f"/volumes/{name}").status_code == 409
            assert api.delete(f"/sandboxes/{made['id']}").status_code == 204
            assert api.get(f"/volumes/{name}").status_code == 404
            assert api.delete(f"/volumes/{name}-own").status_code == 204
        volumes = own.data / "volumes"
        assert not list(volumes.iterdir())


def test_the_command_line_makes_mounts_and_removes_volumes(server, shared, name):
    def cli(*words):
        done = server.cli(*words, environment={"OPEN_SANDBOX_DOMAIN": server.direct, "OPEN_SANDBOX_API_KEY": server.key})
        return done.returncode, done.stdout, done.stderr

    assert cli("volume", "create", name)[0] == 0
    code, out, err = cli("run", "-v", f"{name}:/data", "-v", f"{shared}:/host:ro", "--", "sh", "-c", "echo x > /data/f; touch /host/x")
    assert code == 1 and "Read-only" in err, (out, err)
    code, out, err = cli("run", "-v", f"{name}:/data:ro", "--", "cat", "/data/f")
    assert (code, out) == (0, "x\n"), err
    assert cli("run", "-v", "/etc:/data", "--", "true")[0] == 125
    listed = json.loads(cli("volume", "list", "-o", "json")[1])["items"]
    assert name in [volume["name"] for volume in listed]
    code, out, _ = cli("sandbox", "create", "-v", f"{name}:/data", "-o", "json")
    sandbox = json.loads(out)["id"]
    code, out, _ = cli("volume", "get", name)
    assert code == 0 and sandbox in out
    code, out, err = cli("volume", "rm", name)
    assert code == 1 and sandbox in out + err
    assert cli("sandbox", "kill", sandbox)[0] == 0
    assert cli("volume", "rm", name)[0] == 0


def test_without_a_server_the_command_line_allows_what_it_names_and_nothing_else(server, shared, tmp_path_factory, name):
    data = tmp_path_factory.mktemp("alone")
    if server.user:
        os.chown(data, server.user.pw_uid, server.user.pw_gid)
    alone = {"OSB_DATA_DIR": str(data)}
    (shared / name).mkdir()
    (shared / name).chmod(0o777)

    def run(*words):
        done = server.cli("run", *words, environment=alone)
        return done.returncode, done.stdout, done.stderr

    code, out, err = run("-v", f"{shared / name}:/work", "-w", "/work", "--", "sh", "-c", "echo made > here; pwd")
    assert (code, out) == (0, "/work\n"), err
    assert (shared / name / "here").read_text() == "made\n"
    code, _, err = run("-v", f"{name}:/work", "--", "true")
    assert code == 125 or code == 2, err
    assert "server" in err
    code, _, err = run("-v", f"{shared}/no/such:/work", "--", "true")
    assert code != 0 and "no such file" in err
    code, _, err = run("-v", f"{data}:/work", "--", "true")
    assert code == 125 and "VOLUME::HOST_PATH_NOT_ALLOWED" in err or "allow" in err
