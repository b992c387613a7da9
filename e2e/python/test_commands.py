"""Commands through the published client."""

import hashlib
import threading
import time
from datetime import timedelta

import pytest
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.execd import RunCommandOpts

import clients


def run(sandbox, command, handlers=None, **options):
    return sandbox.commands.run(command, opts=RunCommandOpts(**options), handlers=handlers)


def wait_until_done(sandbox, execution_id, seconds=10):
    deadline = time.monotonic() + seconds
    while True:
        status = sandbox.commands.get_command_status(execution_id)
        if not status.running:
            return status
        assert time.monotonic() < deadline, status
        time.sleep(0.02)


def test_output_comes_while_the_command_runs(client, sandbox):
    arrived = {}
    handlers = client.handlers(
        on_stdout=lambda message: arrived.setdefault(message.text.strip(), time.monotonic())
    )
    execution = run(sandbox, "echo first; sleep 0.6; echo second", handlers)
    assert execution.exit_code == 0
    assert list(arrived) == ["first", "second"]
    assert arrived["second"] - arrived["first"] > 0.4


def test_a_command_ends_without_delay(client, sandbox):
    run(sandbox, "true")
    started = time.monotonic()
    for _ in range(5):
        run(sandbox, "true")
    assert (time.monotonic() - started) / 5 < 0.25


def test_stdout_and_stderr_are_told_apart(client, sandbox):
    execution = run(sandbox, "echo out; echo err >&2; printf tail")
    assert "".join(m.text for m in execution.logs.stdout) == "out\ntail"
    assert "".join(m.text for m in execution.logs.stderr) == "err\n"
    assert all(m.is_error for m in execution.logs.stderr)


@pytest.mark.parametrize("code", [0, 1, 3, 127, 255])
def test_exit_codes_are_the_commands_own(client, sandbox, code):
    execution = run(sandbox, f"exit {code}")
    assert execution.exit_code == code
    assert (execution.error is None) == (code == 0)
    if code:
        assert (execution.error.name, execution.error.value) == ("CommandExecError", str(code))


def test_death_by_signal_is_told(client, sandbox):
    execution = run(sandbox, "kill -9 $$")
    assert execution.exit_code == -1
    assert execution.error.traceback == ["signal: killed"]


def test_argv_reaches_the_program_unchanged(client, sandbox):
    argv = ["printf", "[%s]", "a b", "", "$HOME", "'q'", "-n"]
    assert run(sandbox, argv).text == "[a b][][$HOME]['q'][-n]"


def test_environment_of_one_command(client, sandbox):
    assert run(sandbox, 'echo "$A|$B"', envs={"A": "1 2", "B": "$A"}).text == "1 2|$A"
    assert run(sandbox, 'echo "${A-unset}"').text == "unset"


def test_set_env_lasts_for_later_commands(client, sandbox):
    sandbox.commands.set_env("LASTING", "it's $HOME")
    sandbox.commands.set_env("LASTING_TOO", "a b")
    assert run(sandbox, 'echo "$LASTING_TOO"').text == "a b"
    assert run(sandbox, 'echo "$LASTING_TOO"', envs={"LASTING_TOO": "mine"}).text == "mine"


def test_working_directory(client, sandbox):
    assert run(sandbox, "pwd", working_directory="/usr/share").text == "/usr/share"
    with pytest.raises(SandboxApiException) as caught:
        run(sandbox, "pwd", working_directory="/no/such/place")
    assert caught.value.status_code == 400
    assert "/no/such/place" in str(caught.value)


def test_a_timeout_ends_the_whole_group(client, sandbox):
    started = time.monotonic()
    execution = run(sandbox, "sleep 987 | sleep 987", timeout=timedelta(milliseconds=700))
    assert 0.6 < time.monotonic() - started < 6
    assert execution.exit_code == -1
    assert run(sandbox, "pgrep -x sleep -a | grep 987").text == ""


def test_background_has_status_and_logs(client, sandbox):
    execution = run(
        sandbox,
        "echo one; echo oops >&2; while [ ! -e /tmp/go ]; do sleep 0.02; done; echo two; exit 5",
        background=True,
    )
    assert execution.exit_code is None
    status = sandbox.commands.get_command_status(execution.id)
    assert status.running and status.finished_at is None
    first = sandbox.commands.get_background_command_logs(execution.id)
    deadline = time.monotonic() + 5
    while first.content.count("\n") < 2:
        assert time.monotonic() < deadline
        first = sandbox.commands.get_background_command_logs(execution.id)
    assert sorted(first.content.split()) == ["one", "oops"]
    sandbox.files.write_file("/tmp/go", "")
    status = wait_until_done(sandbox, execution.id)
    assert status.exit_code == 5
    assert status.finished_at >= status.started_at
    rest = sandbox.commands.get_background_command_logs(execution.id, first.cursor)
    assert rest.content == "two\n"
    again = sandbox.commands.get_background_command_logs(execution.id, rest.cursor)
    assert (again.content, again.cursor) == ("", rest.cursor)


def test_background_is_interrupted(client, sandbox):
    execution = run(sandbox, "sleep 987 & sleep 987", background=True)
    sandbox.commands.interrupt(execution.id)
    status = wait_until_done(sandbox, execution.id, 6)
    assert status.exit_code != 0
    assert run(sandbox, "pgrep -x sleep -a | grep 987").text == ""


def test_foreground_is_interrupted_from_elsewhere(server, client, sandbox):
    def interrupt(init):
        other = clients.Client("sync", server.domain, server.key)

        def work():
            other.connect(sandbox.id).commands.interrupt(init.id)
            other.close()

        threading.Thread(target=work).start()

    started = time.monotonic()
    execution = run(sandbox, "sleep 987", client.handlers(on_init=interrupt))
    assert time.monotonic() - started < 8
    assert execution.exit_code != 0


def test_interrupting_a_finished_command_says_so(client, sandbox):
    execution = run(sandbox, "true")
    with pytest.raises(SandboxApiException) as caught:
        sandbox.commands.interrupt(execution.id)
    assert caught.value.status_code == 400
    assert "ended" in str(caught.value)


def test_large_output_is_complete(client, sandbox):
    digest = hashlib.sha256()
    count = [0]

    def take(message):
        data = message.text.encode()
        digest.update(data)
        count[0] += len(data)

    make = "import sys\nfor n in range(200000): sys.stdout.write('%079d\\n' % n)"
    sandbox.files.write_file("/tmp/make.py", make)
    execution = run(
        sandbox,
        "/usr/bin/python3 /tmp/make.py",
        client.handlers(on_stdout=take, skip_accumulation=True),
    )
    assert execution.exit_code == 0
    expected = hashlib.sha256()
    for number in range(200000):
        expected.update(b"%079d\n" % number)
    assert count[0] == 200000 * 80
    assert digest.hexdigest() == expected.hexdigest()


def test_text_of_any_language_survives(client, sandbox):
    text = "žluťoučký kůň 🐎 日本語"
    assert run(sandbox, ["echo", text]).text == text


def test_a_command_reads_end_of_file(client, sandbox):
    execution = run(sandbox, "cat; echo done", timeout=timedelta(seconds=5))
    assert (execution.text, execution.exit_code) == ("done", 0)


def test_another_identity(client, sandbox):
    execution = run(sandbox, "id -u; id -g", uid=1000, gid=1000)
    if execution.exit_code == 0:
        assert execution.text.split() == ["1000", "1000"]
    else:
        # A sandbox of an ordinary user may own one id only: then the refusal says so.
        assert execution.error.value
    assert run(sandbox, "id -u", uid=0).text == "0"


def test_an_empty_command_is_refused(client, sandbox):
    with pytest.raises(Exception) as caught:
        run(sandbox, "")
    assert "command" in str(caught.value).lower()


def test_a_missing_program_is_an_error_and_not_a_success(client, sandbox):
    execution = run(sandbox, ["/no/such/program"])
    assert execution.exit_code != 0
    assert execution.error.name == "CommandExecError"
    assert "no such file" in execution.error.value.lower()
