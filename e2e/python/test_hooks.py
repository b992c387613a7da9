"""Commands that a sandbox runs by itself, asked for at create."""

import threading
import time

import pytest
from opensandbox.exceptions import SandboxException
from opensandbox.models.sandboxes import LifecycleHook, SandboxLifecycle

from conftest import minimal


def create(raw, lifecycle, **changes):
    answer = raw.post("/sandboxes", json=minimal(lifecycle=lifecycle, **changes))
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


def logs(raw, sandbox_id):
    answer = raw.get(f"/sandboxes/{sandbox_id}/diagnostics/logs?tail=1000")
    assert answer.status_code == 200, answer.text
    return answer.text


def test_hooks_run_before_and_beside_the_main_process_and_are_in_the_logs(raw):
    lifecycle = {
        "preStart": {"command": ["sh", "-c", "echo prepared > /tmp/ready; echo hook-output"], "timeoutSeconds": 30},
        "periodic": [{"name": "tick", "schedule": "@every 1s", "command": ["echo", "tick-output"]}],
    }
    sandbox_id = create(raw, lifecycle, entrypoint=["sh", "-c", "cat /tmp/ready; sleep infinity"])
    try:
        assert raw.get(f"/sandboxes/{sandbox_id}/endpoints/44772").status_code == 200
        deadline = time.monotonic() + 30
        while logs(raw, sandbox_id).count("tick-output") < 2:
            assert time.monotonic() < deadline, logs(raw, sandbox_id)
        assert logs(raw, sandbox_id).startswith("hook-output\nprepared\n")
    finally:
        assert raw.delete(f"/sandboxes/{sandbox_id}").status_code == 204


def test_a_hook_that_fails_makes_the_sandbox_fail_with_its_reason(raw):
    sandbox_id = create(raw, {"preStart": {"command": ["sh", "-c", "echo what went wrong; exit 3"]}})
    # The look-up that the published clients make at once waits for the outcome.
    looked_up = raw.get(f"/sandboxes/{sandbox_id}/endpoints/44772")
    assert looked_up.status_code >= 400, looked_up.text
    assert "preStart hook ended with exit code 3" in looked_up.json()["message"]
    status = raw.get(f"/sandboxes/{sandbox_id}").json()["status"]
    assert status["state"] == "Failed", status
    assert "preStart hook ended with exit code 3" in status["message"]
    assert "what went wrong" in status["message"]
    assert raw.delete(f"/sandboxes/{sandbox_id}").status_code == 204


@pytest.mark.parametrize(
    ("lifecycle", "field"),
    [
        ({"preStart": {"command": []}}, "lifecycle.preStart.command"),
        ({"preStart": {"command": ["true"], "timeoutSeconds": 10801}}, "lifecycle.preStart.timeoutSeconds"),
        ({"preStop": {"command": ["true"]}}, "preStop"),
        ({"beforePause": {"command": ["true"], "onFailure": "retry"}}, "retry"),
        ({"afterResume": {"command": [" "]}}, "lifecycle.afterResume.command"),
        ({"beforeEnd": {"command": ["true"], "timeoutSeconds": 16}}, "lifecycle.beforeEnd.timeoutSeconds"),
        ({"periodic": [{"name": "a", "schedule": "0 0 30 2 *", "command": ["true"]}]}, "lifecycle.periodic[0].schedule"),
    ],
)
def test_hooks_that_cannot_be_meant_are_refused_by_name(raw, lifecycle, field):
    answer = raw.post("/sandboxes", json=minimal(lifecycle=lifecycle))
    assert answer.status_code == 422, answer.text
    assert field in answer.text


def test_the_published_client_creates_with_hooks_and_hears_why_one_failed(client):
    hook = LifecycleHook(command=["sh", "-c", "echo ready > /tmp/ready"])
    sandbox = client.create(lifecycle=SandboxLifecycle(preStart=hook))
    assert sandbox.files.read_file("/tmp/ready") == "ready\n"
    failing = LifecycleHook(command=["sh", "-c", "exit 7"])
    with pytest.raises(SandboxException) as caught:
        client.create(lifecycle=SandboxLifecycle(preStart=failing))
    assert "exit code 7" in str(caught.value)


def events(raw, sandbox_id):
    answer = raw.get(f"/sandboxes/{sandbox_id}/diagnostics/events")
    assert answer.status_code == 200, answer.text
    return answer.text


def running(raw, lifecycle, **changes):
    sandbox_id = create(raw, lifecycle, **changes)
    assert raw.get(f"/sandboxes/{sandbox_id}/endpoints/44772").status_code == 200
    return sandbox_id


def test_hooks_run_around_a_pause_and_are_in_logs_and_events(raw, pauses):
    lifecycle = {
        "beforePause": {"command": ["sh", "-c", "echo before-the-pause; exit 3"]},
        "afterResume": {"command": ["echo", "after-the-resume"], "timeoutSeconds": 30},
    }
    sandbox_id = running(raw, lifecycle)
    try:
        if not pauses:
            assert raw.post(f"/sandboxes/{sandbox_id}/pause").status_code == 400
            assert "before-the-pause" not in logs(raw, sandbox_id)
            return
        for _ in range(2):
            assert raw.post(f"/sandboxes/{sandbox_id}/pause").status_code == 202
            assert raw.get(f"/sandboxes/{sandbox_id}").json()["status"]["state"] == "Paused"
            assert raw.post(f"/sandboxes/{sandbox_id}/resume").status_code == 202
        written = logs(raw, sandbox_id)
        assert written.count("before-the-pause") == written.count("after-the-resume") == 2, written
        told = events(raw, sandbox_id)
        assert told.count("HOOK_FAILED  The beforePause hook ended with exit code 3.") == 2, told
        assert told.count("HOOK_SUCCEEDED  The afterResume hook ended with 0") == 2, told
    finally:
        assert raw.delete(f"/sandboxes/{sandbox_id}").status_code == 204


def test_a_hook_before_a_pause_can_refuse_it(raw, pauses):
    once = "test -e /tmp/tried && exit 0; touch /tmp/tried; sleep 600"
    hook = {"command": ["sh", "-c", once], "timeoutSeconds": 1, "onFailure": "refuse"}
    sandbox_id = running(raw, {"beforePause": hook})
    try:
        if not pauses:
            assert raw.post(f"/sandboxes/{sandbox_id}/pause").status_code == 400
            assert raw.get(f"/sandboxes/{sandbox_id}").json()["status"]["state"] == "Running"
            return
        refused = raw.post(f"/sandboxes/{sandbox_id}/pause")
        assert refused.status_code == 409, refused.text
        assert "beforePause hook did not end within 1 s" in refused.json()["message"]
        status = raw.get(f"/sandboxes/{sandbox_id}").json()["status"]
        assert (status["state"], status["reason"]) == ("Running", "PAUSE_REFUSED")
        assert raw.post(f"/sandboxes/{sandbox_id}/pause").status_code == 202
    finally:
        assert raw.delete(f"/sandboxes/{sandbox_id}").status_code == 204


def test_the_hook_before_the_end_runs_before_term_and_within_its_bound(raw, pauses):
    entrypoint = ["sh", "-c", "trap 'echo term-came; exit 0' TERM; while :; do sleep 0.1; done"]
    hook = {"command": ["sh", "-c", "echo end-is-near; sleep 600"], "timeoutSeconds": 8}
    sandbox_id = running(raw, {"beforeEnd": hook}, entrypoint=entrypoint)
    if pauses:
        # What is frozen is thawed for its hook.
        assert raw.post(f"/sandboxes/{sandbox_id}/pause").status_code == 202
    answers = []
    ending = threading.Thread(target=lambda: answers.append(raw.delete(f"/sandboxes/{sandbox_id}")))
    ending.start()
    try:
        deadline = time.monotonic() + 30
        seen = logs(raw, sandbox_id)
        while "end-is-near" not in seen:
            assert time.monotonic() < deadline, seen
            time.sleep(0.02)
            seen = logs(raw, sandbox_id)
        assert "term-came" not in seen
        assert raw.get(f"/sandboxes/{sandbox_id}").json()["status"]["state"] == "Stopping"
    finally:
        ending.join(60)
    assert answers and answers[0].status_code == 204, answers
    assert raw.get(f"/sandboxes/{sandbox_id}").status_code == 404


def test_an_end_without_grace_waits_for_no_hook(raw):
    hook = {"command": ["sleep", "600"], "timeoutSeconds": 15}
    sandbox_id = running(raw, {"beforeEnd": hook})
    begun = time.monotonic()
    assert raw.delete(f"/sandboxes/{sandbox_id}?grace=0").status_code == 204
    assert time.monotonic() - begun < 15
