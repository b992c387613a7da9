"""Code contexts through the published code interpreter client, sync and async."""

import threading

import pytest
from code_interpreter import CodeInterpreter, CodeInterpreterSync
from opensandbox.exceptions import SandboxApiException

import clients


class Interpreter:
    """The client's interpreter of one sandbox, whichever of the two clients it is of."""

    def __init__(self, client, sandbox):
        if client.loop:
            made = client.loop.run_until_complete(CodeInterpreter.create(sandbox._wrapped))
            self.interpreter = clients.block(made, client.loop)
        else:
            self.interpreter = CodeInterpreterSync.create(sandbox)
        self.codes = self.interpreter.codes

    def context(self, language):
        return self.codes.create_context(language)

    def run(self, code, **options):
        return self.codes.run(code, **options)


@pytest.fixture
def interpreter(client, sandbox):
    return Interpreter(client, sandbox)


def stdout(execution):
    assert execution.error is None, execution.error
    return "".join(message.text for message in execution.logs.stdout)


def result(execution):
    assert execution.error is None, execution.error
    assert len(execution.result) == 1, execution
    return execution.result[0].text


def test_a_plain_image_is_ready_and_keeps_names(interpreter):
    assert interpreter.codes.ping() is True
    context = interpreter.context("python")
    execution = interpreter.run("x = 20\nprint('hello')\nx + 1", context=context)
    assert (stdout(execution), result(execution)) == ("hello\n", "21")
    assert (execution.id, execution.execution_count) == (context.id, 1)
    assert execution.complete is not None
    assert result(interpreter.run("x", context=context)) == "20"
    assert interpreter.codes.get_context(context.id) == context


def test_runs_without_a_context_share_the_languages_own(interpreter):
    interpreter.run("shared = 5", language="python")
    assert result(interpreter.run("shared", language="python")) == "5"
    assert result(interpreter.run("shared")) == "5"
    assert stdout(interpreter.run("x=1; echo $x", language="bash")) == "1\n"
    assert result(interpreter.run("[1, 2].length", language="javascript")) == "2"


def test_handlers_see_events_and_errors_have_their_parts(client, interpreter):
    seen = []
    handlers = client.handlers(
        on_init=lambda event: seen.append(("init", event.id)),
        on_stdout=lambda event: seen.append(("stdout", event.text)),
        on_stderr=lambda event: seen.append(("stderr", event.text)),
        on_error=lambda event: seen.append(("error", event.name)),
        on_result=lambda event: seen.append(("result", event.text)),
        on_execution_complete=lambda event: seen.append(("complete",)),
    )
    context = interpreter.context("python")
    execution = interpreter.run("display(1)\nprint('out')\n1 / 0", context=context, handlers=handlers)
    assert seen == [
        ("init", context.id), ("result", "1"), ("stdout", "out\n"), ("error", "ZeroDivisionError"), ("complete",)
    ]
    assert (execution.error.name, execution.error.value) == ("ZeroDivisionError", "division by zero")
    assert execution.error.traceback[0] == "Traceback (most recent call last):"


def test_contexts_are_listed_and_deleted(interpreter):
    one, two = interpreter.context("python"), interpreter.context("python")
    bash = interpreter.context("bash")
    listed = interpreter.codes.list_contexts("python")
    assert {context.id for context in listed} == {one.id, two.id}
    interpreter.codes.delete_context(one.id)
    with pytest.raises(SandboxApiException) as refusal:
        interpreter.codes.get_context(one.id)
    assert refusal.value.status_code == 404
    interpreter.codes.delete_contexts("python")
    assert interpreter.codes.list_contexts("python") == []
    assert interpreter.codes.list_contexts("bash") == [bash]
    with pytest.raises(SandboxApiException):
        interpreter.run("1", context=two)


def test_languages_that_are_not_there_are_refused_by_name(interpreter):
    with pytest.raises(SandboxApiException, match="cobol"):
        interpreter.context("cobol")


def test_ex_012_interrupt_keeps_the_variables(client, sandbox, interpreter):
    context = interpreter.context("python")
    started = threading.Event()
    handlers = client.handlers(on_stdout=lambda event: started.set())
    failures = []

    def interrupt():
        # The async client's loop belongs to the running test: a client of its own interrupts.
        try:
            assert started.wait(30)
            other = clients.Client("sync", *client.address)
            Interpreter(other, other.connect(sandbox.id)).codes.interrupt(context.id)
            other.close()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    thread = threading.Thread(target=interrupt)
    thread.start()
    execution = interpreter.run("kept = 7\nprint('on', flush=True)\nwhile True: pass", context=context, handlers=handlers)
    thread.join(60)
    assert not failures, failures
    assert execution.error.name == "KeyboardInterrupt"
    assert result(interpreter.run("kept", context=context)) == "7"


def test_ex_012_a_dead_interpreter_is_an_error_and_the_next_run_works(interpreter):
    context = interpreter.context("python")
    execution = interpreter.run("import os; os._exit(9)", context=context)
    assert execution.error.name == "DeadKernelError"
    assert interpreter.run("input()", context=context).error.name == "StdinNotImplementedError"
    assert result(interpreter.run("2", context=context)) == "2"


def test_operations_refuse_what_is_not_there(raw_sandbox):
    _, execd = raw_sandbox

    def refuses(method, path, status, code):
        answer = execd.request(method, path)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text

    refuses("DELETE", "/code?id=none", 400, "CONTEXT_NOT_FOUND")
    refuses("DELETE", "/code/contexts", 400, "MISSING_QUERY")
    refuses("DELETE", "/code/contexts/none", 404, "CONTEXT_NOT_FOUND")
    assert execd.get("/code/contexts", params={"language": ""}).json() == []
