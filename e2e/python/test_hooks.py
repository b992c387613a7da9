"""Commands that a sandbox runs by itself, asked for at create."""

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
