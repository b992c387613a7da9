"""Isolated sessions through the published client, and their calls by plain HTTP."""

import threading
import time
import uuid

import pytest
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.filesystem import (
    ContentReplaceEntry,
    MoveEntry,
    SearchEntry,
    SetPermissionEntry,
    WriteEntry,
)
from opensandbox.models.isolated import (
    BindMount,
    CreateIsolatedSessionRequest,
    EnvPassthroughSpec,
    IsolatedOverlaySpec,
    IsolatedRunOpts,
    IsolatedWorkspaceSpec,
)

# Longest wait for a background run; a loaded machine is slow.
SECONDS = 30
UNKNOWN = str(uuid.UUID(int=1))
WORKSPACE = "/workspace"


def request(path=WORKSPACE, mode=None, **fields):
    return CreateIsolatedSessionRequest(
        workspace=IsolatedWorkspaceSpec(path=path, mode=mode), **fields
    )


def shell(sandbox, command):
    execution = sandbox.commands.run(command)
    assert execution.exit_code == 0, execution
    return execution.text.strip()


def text(session, code, **options):
    execution = session.run(code, **options)
    assert (execution.exit_code, execution.error) == (0, None), execution
    return execution.text.strip()


@pytest.fixture
def session(sandbox):
    shell(sandbox, f"mkdir -p {WORKSPACE}/sub; echo one >{WORKSPACE}/a; echo two >{WORKSPACE}/sub/b")
    return sandbox.isolation.create(request())


def refused(status, code, function, *args, **kwargs):
    with pytest.raises(SandboxApiException) as refusal:
        function(*args, **kwargs)
    assert refusal.value.status_code == status, refusal.value
    assert refusal.value.error.code == code, refusal.value
    return str(refusal.value)


def ended(session, run_id):
    deadline = time.monotonic() + SECONDS
    while True:
        status = session.run_status(run_id)
        if not status.running:
            return status
        assert time.monotonic() < deadline, status
        time.sleep(0.02)


def test_capabilities_say_what_there_is(client, sandbox):
    told = sandbox.isolation.capabilities()
    assert told.available and told.diff_supported and told.commit_supported
    assert told.setpriv_available and not told.userns_available
    assert told.hardening.seccomp.state == "active"


def test_a_session_is_made_found_and_ended(client, sandbox, session):
    assert uuid.UUID(session.session_id)
    state = session.get()
    assert (state.status, state.profile, state.share_net) == ("active", "strict", True)
    assert state.workspace.path == WORKSPACE and state.overlays[0].mode == "overlay"
    assert state.idle_timeout_seconds == 0
    other = sandbox.isolation.create(request(mode="rw"))
    assert [one.session_id for one in sandbox.isolation.list()] == [
        session.session_id,
        other.session_id,
    ]
    again = sandbox.isolation.attach(session.session_id)
    assert text(again, "pwd") == WORKSPACE
    session.delete()
    assert [one.session_id for one in sandbox.isolation.list()] == [other.session_id]
    refused(404, "SESSION_NOT_FOUND", session.get)
    refused(404, "SESSION_NOT_FOUND", session.delete)
    refused(404, "SESSION_NOT_FOUND", session.run, "true")
    refused(404, "SESSION_NOT_FOUND", sandbox.isolation.attach, UNKNOWN)


def test_the_shell_remembers_everything(client, session):
    assert text(session, "A=1; export B=2; f() { echo $A$B; }; cd sub; pwd") == f"{WORKSPACE}/sub"
    assert text(session, "f; pwd") == f"12\n{WORKSPACE}/sub"
    assert text(session, "echo $C; A=9", opts=IsolatedRunOpts(envs={"C": "it's"})) == "it's"
    assert text(session, "echo $A${C-unset}") == "1unset"


def test_failures_are_told(client, session):
    failed = session.run("echo before; (exit 7)")
    assert (failed.exit_code, failed.error.name, failed.error.value) == (7, "ExitError", "7")
    assert failed.text.strip() == "before"
    broken = session.run("if then")
    assert broken.exit_code == 2 and "syntax error" in broken.text
    assert text(session, "echo out; echo err >&2") == "out\nerr"


def test_a_timeout_interrupts_the_run_alone(client, session):
    session.run("KEPT=1")
    started = time.monotonic()
    late = session.run("sleep 300; echo never", opts=IsolatedRunOpts(timeout_seconds=1))
    assert time.monotonic() - started < 60
    assert late.error.name == "RuntimeError" and "never" not in late.text
    stubborn = "trap '' INT; sleep 300"
    late = session.run(f"sh -c \"{stubborn}\"", opts=IsolatedRunOpts(timeout_seconds=1))
    assert late.error.name == "RuntimeError"
    assert text(session, "echo $KEPT") == "1"


def test_an_exit_ends_the_session(client, session):
    over = session.run("exit 4")
    assert (over.exit_code, over.error.name) == (4, "ExitError")
    assert session.get().status == "dead"
    refused(400, "INVALID_REQUEST_BODY", session.run, "true")


def test_writes_stay_in_the_session(client, sandbox, session):
    text(session, "echo changed >a; echo new >c; rm sub/b; mkdir d; echo deep >d/e")
    assert shell(sandbox, f"cd {WORKSPACE}; cat a sub/b; ls") == "one\ntwo\na\nsub"
    assert text(session, "cat a c d/e; ls sub") == "changed\nnew\ndeep"
    assert "Read-only" in session.run("touch /etc/x; touch /usr/local/x").text
    text(session, "echo own >/tmp/own; echo run >/run/x")
    assert shell(sandbox, "ls /tmp /run | grep -c own || true") == "0"
    assert text(session, "hostname; echo $$ >/dev/null; ls /proc | grep -c '^[0-9]'").startswith("sandbox")


def test_profile_network_and_modes(client, sandbox):
    shell(sandbox, "mkdir -p /workspace/ro /mnt/in /mnt/file; echo x >/tmp/shared; echo y >/mnt/in/y")
    made = sandbox.isolation.create(
        CreateIsolatedSessionRequest(
            workspace=IsolatedWorkspaceSpec(path="/workspace", mode="rw"),
            overlays=[
                IsolatedOverlaySpec(path="/workspace/ro", mode="ro"),
                IsolatedOverlaySpec(path="/made/by/it", persist=False),
            ],
            profile="balanced",
            share_net=False,
            extra_writable=["/mnt/file"],
            binds=[BindMount(source="/mnt/in", dest="/seen/here", readonly=True)],
        )
    )
    assert text(made, "cat /tmp/shared /seen/here/y") == "x\ny"
    text(made, "echo rw >/workspace/w; echo f >/mnt/file/f; echo e >/made/by/it/e")
    assert shell(sandbox, "cat /workspace/w /mnt/file/f; ls /made/by/it") == "rw\nf"
    for path in ("/workspace/ro/x", "/seen/here/x"):
        assert "Read-only" in made.run(f"echo x >{path}").text
    ours = shell(sandbox, "readlink /proc/self/ns/net")
    assert text(made, "readlink /proc/self/ns/net") != ours
    shared = sandbox.isolation.create(request())
    assert text(shared, "readlink /proc/self/ns/net") == ours


def test_variables_follow_the_rules(client):
    sandbox = client.create(env={"PLAIN": "1", "MY_TOKEN": "2", "AWS_X": "3"})
    code = 'echo "${PLAIN-no}${MY_TOKEN-no}${AWS_X-no}${EXECD_ENVS-no}"'
    for rule, seen in [
        (None, "1nonono"),
        (EnvPassthroughSpec(mode="deny", keys=["PLAIN"]), "no23no"),
        (EnvPassthroughSpec(mode="allow", keys=["MY_TOKEN"]), "no2nono"),
    ]:
        made = sandbox.isolation.create(request(env_passthrough=rule))
        assert text(made, code) == seen, rule


def test_background_runs(client, sandbox, session):
    session.run("X=seen")
    run = session.run_background("echo $X $Y; echo err >&2; exit 3", opts=IsolatedRunOpts(envs={"Y": "y"}))
    status = ended(session, run.run_id)
    assert (status.exit_code, status.error) == (3, None) and status.finished_at
    logs = session.run_logs(run.run_id)
    assert (logs.text, logs.cursor) == ("seen y\nerr\n", 11)
    assert session.run_logs(run.run_id, cursor=7).text == "err\n"
    long = session.run_background("sleep 300")
    assert session.run_status(long.run_id).running
    assert text(session, "echo beside") == "beside"
    refused(404, "SESSION_NOT_FOUND", session.run_status, UNKNOWN)
    refused(404, "SESSION_NOT_FOUND", session.run_logs, UNKNOWN)
    session.run("exit 0")
    over = ended(session, long.run_id)
    assert (over.exit_code, over.error) == (None, "session terminated")
    memory = sandbox.isolation.create(
        CreateIsolatedSessionRequest(overlays=[IsolatedOverlaySpec(path=WORKSPACE, persist=False)])
    )
    assert "background" in refused(400, "INVALID_REQUEST_BODY", memory.run_background, "true")


def test_files_are_the_merged_view(client, sandbox, session):
    files = session.files
    assert files.read_file(f"{WORKSPACE}/a") == "one\n"
    files.write_file(f"{WORKSPACE}/new", "text", mode=600)
    assert text(session, "cat new") == "text"
    info = files.get_file_info([f"{WORKSPACE}/new"])[f"{WORKSPACE}/new"]
    assert (info.size, info.mode) == (4, 600)
    files.set_permissions([SetPermissionEntry(path=f"{WORKSPACE}/new", mode=644)])
    files.move_files([MoveEntry(src=f"{WORKSPACE}/new", dest=f"{WORKSPACE}/moved")])
    files.replace_contents(
        [ContentReplaceEntry(path=f"{WORKSPACE}/moved", old_content="text", new_content="word")]
    )
    assert files.read_file(f"{WORKSPACE}/moved") == "word"
    assert [found.path for found in files.search(SearchEntry(path=WORKSPACE, pattern="mov*"))] == [
        f"{WORKSPACE}/moved"
    ]
    files.create_directories([WriteEntry(path=f"{WORKSPACE}/dir", mode=755)])
    files.delete_files([f"{WORKSPACE}/moved"])
    files.delete_directories([f"{WORKSPACE}/dir"])
    assert shell(sandbox, f"ls {WORKSPACE}") == "a\nsub"
    refused(404, "FILE_NOT_FOUND", files.get_file_info, [f"{WORKSPACE}/gone"])


@pytest.fixture
def isolated(raw_sandbox):
    """A raw client of one session: call(method, rest, **options)."""
    _, execd = raw_sandbox
    base = "/v1/isolated/session"
    made = execd.post(base, json={"workspace": {"path": WORKSPACE}})
    assert made.status_code == 201, made.text

    def call(method, rest="", session=made.json()["session_id"], **options):
        return execd.request(method, f"{base}/{session}{rest}", **options)

    call.execd = execd
    return call


def changes(answer):
    assert answer.status_code == 200, answer.text
    return [(one["change"], one["path"], one["type"]) for one in answer.json()["changes"]]


def inside(isolated, code):
    answer = isolated("POST", "/run", json={"code": code})
    assert answer.status_code == 200 and '"error"' not in answer.text, answer.text


def outside(isolated, command):
    answer = isolated.execd.post("/command", json={"command": command})
    assert '"error"' not in answer.text, answer.text
    return answer.text


def test_diff_and_commit_change_the_workspace_as_listed(isolated):
    outside(isolated, f"cd {WORKSPACE}; mkdir gone replaced; echo 1 >same; echo 1 >edited; echo x >gone/x; "
            "echo y >replaced/y; echo f >becomes; ln -s /etc/passwd link")
    assert changes(isolated("GET", "/diff")) == []
    inside(isolated, "touch same; echo 2 >edited; rm -r gone; rm -r replaced; mkdir replaced; echo z >replaced/z; "
           "rm becomes; mkdir becomes; chmod 700 becomes; ln -sf /etc/group link; mkdir -p new/deep; echo n >new/deep/n")
    listed = [
        ("modified", f"{WORKSPACE}/becomes", "directory"),
        ("modified", f"{WORKSPACE}/edited", "file"),
        ("deleted", f"{WORKSPACE}/gone", "directory"),
        ("modified", f"{WORKSPACE}/link", "symlink"),
        ("added", f"{WORKSPACE}/new", "directory"),
        ("added", f"{WORKSPACE}/new/deep", "directory"),
        ("added", f"{WORKSPACE}/new/deep/n", "file"),
        ("deleted", f"{WORKSPACE}/replaced/y", "file"),
        ("added", f"{WORKSPACE}/replaced/z", "file"),
    ]
    assert changes(isolated("GET", "/diff")) == listed
    assert changes(isolated("POST", "/commit")) == listed
    assert changes(isolated("GET", "/diff")) == []
    told = outside(isolated, f"cd {WORKSPACE}; cat edited replaced/z new/deep/n; readlink link; stat -c %a becomes; ls")
    for word in ("2\\n", "z\\n", "n\\n", "/etc/group", "700"):
        assert word in told, (word, told)
    assert "gone" not in told
    inside(isolated, "cat edited; rm -r new")
    assert changes(isolated("POST", "/commit")) == [("deleted", f"{WORKSPACE}/new", "directory")]
    assert isolated("DELETE").status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({}, 400, "workspace"),
        ({"workspace": {"path": "relative"}}, 400, "overlays.path"),
        ({"workspace": {"path": "/w", "mode": "bogus"}}, 400, "body"),
        ({"overlays": [{"path": "/w", "mode": "rw", "persist": True}]}, 400, "overlays.persist"),
        ({"workspace": {"path": "/w"}, "uid_mode": "userns"}, 503, "uid_mode"),
        ({"workspace": {"path": "/w"}, "extra_writable": ["/etc"]}, 400, "/etc"),
        ({"workspace": {"path": "/w"}, "extra_writable": ["/mnt/none"]}, 400, "/mnt/none"),
        ({"workspace": {"path": "/w"}, "binds": [{"source": "/workspace/out"}]}, 400, "/workspace/out"),
    ],
)
def test_a_session_is_refused_by_its_field(raw_sandbox, body, status, field):
    _, execd = raw_sandbox
    execd.post("/command", json={"command": "mkdir -p /workspace; ln -s /etc /workspace/out"})
    answer = execd.post("/v1/isolated/session", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["code"] and field in answer.json()["message"]
    assert execd.get("/v1/isolated/sessions").json() == {"sessions": []}


@pytest.mark.parametrize(
    ("method", "rest"),
    [
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/run"),
        ("GET", f"/runs/{UNKNOWN}"),
        ("GET", f"/runs/{UNKNOWN}/logs"),
        ("GET", "/diff"),
        ("POST", "/commit"),
        ("GET", "/files/info?path=/a"),
        ("GET", "/files/download?path=/a"),
        ("POST", "/files/upload"),
        ("DELETE", "/files?path=/a"),
        ("POST", "/files/mv"),
        ("POST", "/files/permissions"),
        ("POST", "/files/replace"),
        ("GET", "/files/search?path=/a"),
        ("GET", "/directories/list?path=/a"),
        ("POST", "/directories"),
        ("DELETE", "/directories?path=/a"),
    ],
)
def test_unknown_sessions_are_404(raw_sandbox, method, rest):
    _, execd = raw_sandbox
    for unknown in (UNKNOWN, "not-a-uuid"):
        answer = execd.request(method, f"/v1/isolated/session/{unknown}{rest}", json={})
        assert answer.status_code == 404, answer.text
        assert answer.json()["code"] == "SESSION_NOT_FOUND"


def test_what_a_session_refuses(isolated):
    for body in ({}, {"code": " "}, {"code": "x", "timeout_seconds": -1}, {"code": "x", "envs": {"1x": ""}}):
        answer = isolated("POST", "/run", json=body)
        assert answer.status_code == 400 and answer.json()["message"], answer.text
    assert isolated("GET", "/files/download?path=/none").status_code == 404
    assert isolated("GET", "/directories/list?path=/none").status_code == 404
    assert isolated("GET", "/files/search?pattern=x").status_code == 400
    assert isolated("GET", f"/directories/list?path={WORKSPACE}").json() == []


def test_runs_take_turns(isolated):
    created = isolated("GET").json()["created_at"]
    code = {"code": "sleep 1; echo first >/tmp/order"}
    first = threading.Thread(target=isolated, args=["POST", "/run"], kwargs={"json": code})
    first.start()
    deadline = time.monotonic() + SECONDS
    while isolated("GET").json()["last_run_at"] == created:
        assert time.monotonic() < deadline, "the first run does not begin"
        time.sleep(0.01)
    second = isolated("POST", "/run", json={"code": "cat /tmp/order"})
    assert "first" in second.text, second.text
    first.join(SECONDS)


def test_an_idle_session_ends_itself(raw_sandbox):
    _, execd = raw_sandbox
    body = {"workspace": {"path": WORKSPACE}, "idle_timeout_seconds": 1}
    made = execd.post("/v1/isolated/session", json=body)
    assert made.status_code == 201, made.text
    deadline = time.monotonic() + SECONDS
    while execd.get("/v1/isolated/sessions").json()["sessions"]:
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.05)


def test_a_paused_sandbox_holds_its_sessions(raw, raw_sandbox, isolated, pauses):
    sandbox_id, _ = raw_sandbox
    if not pauses:
        assert raw.post(f"/sandboxes/{sandbox_id}/pause").status_code == 400
        inside(isolated, "true")
        return
    assert raw.post(f"/sandboxes/{sandbox_id}/pause").status_code == 202
    wait_for(raw, sandbox_id, "Paused")
    assert isolated("GET").status_code == 409
    assert raw.post(f"/sandboxes/{sandbox_id}/resume").status_code == 202
    wait_for(raw, sandbox_id, "Running")
    inside(isolated, "true")


def wait_for(raw, sandbox_id, state):
    deadline = time.monotonic() + SECONDS
    while raw.get(f"/sandboxes/{sandbox_id}").json()["status"]["state"] != state:
        assert time.monotonic() < deadline, state
        time.sleep(0.02)
