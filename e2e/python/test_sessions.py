"""Shell sessions through the published client."""

import threading
import time
from datetime import timedelta

import httpx
import pytest
from opensandbox.exceptions import SandboxApiException

import clients


@pytest.fixture
def session(client, sandbox):
    return Session(sandbox, sandbox.commands.create_session())


class Session:
    """One session, its runs, and its lines."""

    def __init__(self, sandbox, session_id):
        self.sandbox = sandbox
        self.id = session_id

    def run(self, command, **options):
        return self.sandbox.commands.run_in_session(self.id, command, **options)

    def text(self, command, **options):
        execution = self.run(command, **options)
        assert (execution.exit_code, execution.error) == (0, None), execution
        return execution.text


def test_environment_and_directory_last(client, session):
    execution = session.run("export NAME='two words' LINES_='a\nb'; OTHER=1; cd /usr/share")
    assert (execution.id, execution.exit_code) == (session.id, 0)
    assert session.text('echo "$NAME|${OTHER-unset}"; pwd') == "two words|unset\n/usr/share"
    assert session.text('echo "$LINES_"') == "a\nb"


def test_sessions_are_apart(client, sandbox, session):
    session.run("export NAME=1")
    other = Session(sandbox, sandbox.commands.create_session(working_directory="/tmp/made/below"))
    assert other.id != session.id
    assert other.text('echo "${NAME-unset}"; pwd') == "unset\n/tmp/made/below"


def test_output_of_both_streams_is_one(client, session):
    execution = session.run("echo out; echo err >&2; printf tail")
    assert [message.text for message in execution.logs.stdout] == ["out", "err", "tail"]
    assert execution.logs.stderr == []
    assert execution.text == "out\nerr\ntail"


def test_output_comes_while_the_run_goes_on(client, session):
    arrived = {}
    handlers = client.handlers(
        on_stdout=lambda message: arrived.setdefault(message.text, time.monotonic())
    )
    session.run("echo first; sleep 0.6; echo second", handlers=handlers)
    assert list(arrived) == ["first", "second"]
    assert arrived["second"] - arrived["first"] > 0.4


@pytest.mark.parametrize("code", [0, 1, 127])
def test_exit_codes_are_the_commands_own(client, session, code):
    execution = session.run(f"(exit {code})")
    assert execution.exit_code == code
    assert (execution.error is None) == (code == 0)


def test_an_exit_leaves_the_state_as_it_was(client, session):
    session.run("export NAME=before")
    assert session.run("export NAME=after; exit 7").exit_code == 7
    assert session.text("echo $NAME") == "before"


def test_the_directory_of_a_run_is_kept_and_must_exist(client, session):
    assert session.text("pwd", working_directory="/usr") == "/usr"
    assert session.text("pwd") == "/usr"
    with pytest.raises(SandboxApiException) as caught:
        session.run("pwd", working_directory="/no/such/place")
    assert caught.value.status_code == 400
    assert "/no/such/place" in str(caught.value)


def test_set_env_reaches_later_sessions(client, sandbox):
    sandbox.commands.set_env("LASTING", "it's set")
    session = Session(sandbox, sandbox.commands.create_session())
    assert session.text('echo "$LASTING"') == "it's set"


def test_a_timeout_is_a_typed_error_and_the_session_lives(client, session):
    started = time.monotonic()
    execution = session.run("sleep 987 | sleep 987", timeout=timedelta(milliseconds=600))
    assert 0.5 < time.monotonic() - started < 6
    assert (execution.exit_code, execution.error.name) == (-1, "CommandExecError")
    assert any("600 ms" in line for line in execution.error.traceback)
    assert session.run("pgrep -x sleep -a | grep 987").text == ""


def test_state_that_cannot_be_kept_is_told(client, session):
    execution = session.run("export BIG=$(seq 40000)")
    assert execution.error.name == "SessionStateError"
    assert execution.exit_code is None
    assert session.text("echo ${BIG-unset}") == "unset"


def test_deleting_a_session_ends_its_runs(server, client, sandbox, session):
    def delete(_):
        other = clients.Client("sync", server.domain, server.key)

        def work():
            other.connect(sandbox.id).commands.delete_session(session.id)
            other.close()

        threading.Thread(target=work).start()

    started = time.monotonic()
    execution = session.run("sleep 987", handlers=client.handlers(on_init=delete))
    assert time.monotonic() - started < 8
    assert execution.exit_code == -1
    for call in (lambda: session.run("true"), lambda: sandbox.commands.delete_session(session.id)):
        with pytest.raises(SandboxApiException) as caught:
            call()
        assert caught.value.status_code in (400, 404)
        assert session.id in str(caught.value)


def test_a_dropped_connection_ends_the_run(raw_sandbox):
    _, execd = raw_sandbox
    session_id = execd.post("/session", json={"cwd": "/tmp"}).json()["session_id"]
    run = {"command": "sleep 986 & echo begun; sleep 986"}
    with execd.stream("POST", f"/session/{session_id}/run", json=run) as stream:
        for piece in stream.iter_text():
            if "begun" in piece:
                break
    deadline = time.monotonic() + 5
    while "986" in shell(execd, "pgrep -x sleep -a"):
        assert time.monotonic() < deadline
    assert execd.delete("/command", params={"id": session_id}).status_code == 200
    assert execd.delete(f"/session/{session_id}").status_code == 404


def test_refusals(raw_sandbox):
    _, execd = raw_sandbox

    def refused(status, answer):
        body = answer.json()
        assert answer.status_code == status, answer.text
        assert body["code"] and body["message"]

    assert execd.post("/session").status_code == 200
    refused(400, execd.post("/session", content=b"{"))
    refused(400, execd.post("/session", json={"cwd": "/etc/passwd"}))
    refused(400, execd.post("/session/unknown/run", json={"command": "true"}))
    refused(404, execd.delete("/session/unknown"))
    session_id = execd.post("/session", json={}).json()["session_id"]
    refused(400, execd.post(f"/session/{session_id}/run", json={}))
    refused(400, execd.post(f"/session/{session_id}/run", json={"command": "a", "timeout": -1}))
    assert execd.delete(f"/session/{session_id}").content == b""


def shell(execd: httpx.Client, command):
    return execd.post("/command", json={"command": command}).text
