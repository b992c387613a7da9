"""The life of a sandbox through the published client."""

import time
import uuid
from datetime import datetime, timedelta, timezone

import httpx
import pytest
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.sandboxes import SandboxFilter


def wait_for_state(sandbox, state, seconds=10):
    deadline = time.monotonic() + seconds
    while True:
        seen = sandbox.get_info().status
        if seen.state == state or time.monotonic() > deadline:
            assert seen.state == state, seen
            return seen
        time.sleep(0.02)


def test_create_gives_a_healthy_sandbox(client, sandbox):
    assert sandbox.is_healthy()
    assert sandbox.commands.run("echo hello").text == "hello"


def test_info_tells_what_was_asked(client):
    mark = uuid.uuid4().hex
    sandbox = client.create(
        timeout=timedelta(minutes=5),
        metadata={"mark": mark},
        entrypoint=["sleep", "1000"],
        resource={"cpu": "1", "memory": "256Mi"},
    )
    info = sandbox.get_info()
    assert info.id == sandbox.id
    assert info.status.state == "Running"
    assert info.image.image == "host"
    assert info.metadata == {"mark": mark}
    assert info.entrypoint == ["sleep", "1000"]
    assert info.expires_at - info.created_at == timedelta(minutes=5)
    assert abs(datetime.now(timezone.utc) - info.created_at) < timedelta(seconds=60)


def test_no_timeout_means_no_expiry(client):
    assert client.create(timeout=None).get_info().expires_at is None


def test_environment_of_create_reaches_commands(client):
    sandbox = client.create(env={"GREETING": "hello world", "EMPTY": ""})
    assert sandbox.commands.run('echo "$GREETING|${EMPTY-unset}|"').text == "hello world||"


def test_connect_finds_a_living_sandbox(client, sandbox):
    sandbox.files.write_file("/tmp/mark", "still here")
    again = client.connect(sandbox.id)
    assert again.files.read_file("/tmp/mark") == "still here"


def test_connect_to_an_unknown_id_is_404_with_the_request_id(client):
    with pytest.raises(SandboxApiException) as caught:
        client.connect(str(uuid.uuid4()))
    assert caught.value.status_code == 404
    assert caught.value.error.code.endswith("SANDBOX_NOT_FOUND")
    assert caught.value.request_id


def test_list_filters_by_metadata_and_state_and_pages(client):
    mark = uuid.uuid4().hex
    made = [client.create(metadata={"mark": mark, "number": str(n)}).id for n in range(3)]
    manager = client.manager()

    def ids(**wanted):
        found = manager.list_sandbox_infos(SandboxFilter(**wanted))
        return [info.id for info in found.sandbox_infos], found.pagination

    everything, pagination = ids(metadata={"mark": mark})
    assert everything == list(reversed(made))
    assert (pagination.total_items, pagination.has_next_page) == (3, False)
    assert ids(metadata={"mark": mark, "number": "1"})[0] == [made[1]]
    assert ids(metadata={"mark": mark}, states=["Paused"])[0] == []
    assert ids(metadata={"mark": mark}, states=["running", "Paused"])[0] == everything
    second, pagination = ids(metadata={"mark": mark}, page=2, page_size=2)
    assert second == [made[0]]
    assert (pagination.page, pagination.page_size, pagination.total_pages) == (2, 2, 2)


def test_metadata_is_patched_and_null_deletes(client):
    sandbox = client.create(metadata={"keep": "1", "change": "1", "drop": "1"})
    patched = sandbox.patch_metadata({"change": "2", "drop": None, "new": "3"})
    assert patched.metadata == {"keep": "1", "change": "2", "new": "3"}
    assert sandbox.get_info().metadata == patched.metadata


def test_renew_sets_the_expiry(client, sandbox):
    answer = sandbox.renew(timedelta(hours=2))
    expected = datetime.now(timezone.utc) + timedelta(hours=2)
    assert abs(answer.expires_at - expected) < timedelta(seconds=5)
    assert sandbox.get_info().expires_at == answer.expires_at


def test_renew_into_the_past_is_refused(client, sandbox):
    with pytest.raises(SandboxApiException) as caught:
        sandbox.renew(timedelta(seconds=-5))
    assert caught.value.status_code == 400
    assert caught.value.error.code.endswith("INVALID_EXPIRATION")


def refuses_to_pause(sandbox):
    """A server that declares that it cannot pause says so, and leaves the sandbox as it is."""
    with pytest.raises(SandboxApiException) as caught:
        sandbox.pause()
    assert caught.value.status_code == 400
    assert caught.value.response_body is None or b"API_NOT_SUPPORTED" in caught.value.response_body
    assert "pause" in str(caught.value)
    assert sandbox.get_info().status.state == "Running"


def test_pause_freezes_and_resume_goes_on(client, sandbox, pauses):
    if not pauses:
        refuses_to_pause(sandbox)
        return
    ticking = sandbox.commands.run(
        "while :; do echo x >> /tmp/ticks; sleep 0.05; done",
        opts=background(),
    )
    assert ticking.id
    sandbox.pause()
    wait_for_state(sandbox, "Paused")
    with pytest.raises(SandboxApiException) as caught:
        sandbox.commands.run("echo no")
    assert caught.value.status_code == 409
    resumed = client.resume(sandbox.id)
    wait_for_state(resumed, "Running")
    before = len(resumed.files.read_file("/tmp/ticks"))
    deadline = time.monotonic() + 5
    while len(resumed.files.read_file("/tmp/ticks")) <= before:
        assert time.monotonic() < deadline, "the process did not go on"
        time.sleep(0.05)


def test_kill_ends_the_sandbox(client):
    sandbox = client.create()
    sandbox.kill()
    with pytest.raises(SandboxApiException) as caught:
        sandbox.get_info()
    assert caught.value.status_code == 404
    with pytest.raises(SandboxApiException) as caught:
        sandbox.kill()
    assert caught.value.status_code == 404


def test_manager_works_by_id(client, sandbox, pauses):
    manager = client.manager()
    assert manager.get_sandbox_info(sandbox.id).id == sandbox.id
    manager.renew_sandbox(sandbox.id, timedelta(minutes=20))
    if pauses:
        manager.pause_sandbox(sandbox.id)
        wait_for_state(sandbox, "Paused")
        manager.resume_sandbox(sandbox.id)
        wait_for_state(sandbox, "Running")
    manager.kill_sandbox(sandbox.id)
    with pytest.raises(SandboxApiException) as caught:
        manager.get_sandbox_info(sandbox.id)
    assert caught.value.status_code == 404


def test_metrics_show_the_sandbox_and_not_the_machine(client):
    sandbox = client.create(resource={"cpu": "1", "memory": "512Mi"})
    metrics = sandbox.get_metrics()
    assert 0 < metrics.cpu_count
    assert 0 <= metrics.cpu_used_percentage <= 100
    assert 0 < metrics.memory_used_in_mib <= metrics.memory_total_in_mib
    assert abs(metrics.timestamp / 1000 - time.time()) < 30


def test_the_two_endpoints_of_the_protocol_resolve(client, sandbox):
    for port in (44772, 18080):
        assert f"proxy/{port}" in sandbox.get_endpoint(port).endpoint


def test_a_port_is_reached_through_its_endpoint_only_with_the_token(client, sandbox):
    sandbox.files.write_file("/tmp/www/index.html", "from inside")
    sandbox.commands.run(
        "exec /usr/bin/python3 -m http.server 8000 --bind 127.0.0.1 --directory /tmp/www",
        opts=background(),
    )
    endpoint = sandbox.get_endpoint(8000)
    url = f"http://{endpoint.endpoint}/index.html"
    deadline = time.monotonic() + 15
    while True:
        answer = httpx.get(url, headers=endpoint.headers)
        if answer.status_code != 502 or time.monotonic() > deadline:
            break
        assert answer.json()["code"] == "BACKEND_CONNECTION_FAILED"
        assert "retry-after" in answer.headers
        time.sleep(0.05)
    assert (answer.status_code, answer.text) == (200, "from inside")
    assert httpx.get(url).status_code == 401
    wrong = {name: ("y" if value[0] == "x" else "x") + value[1:] for name, value in endpoint.headers.items()}
    assert httpx.get(url, headers=wrong).status_code == 401


def test_diagnostics_tell_logs_and_events(client):
    sandbox = client.create(entrypoint=["sh", "-c", "echo from the entrypoint; exec sleep 1000"])
    deadline = time.monotonic() + 5
    while "from the entrypoint" not in (sandbox.get_diagnostic_logs("container").content or ""):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    events = sandbox.get_diagnostic_events("runtime")
    assert events.kind == "events"
    assert events.sandbox_id == sandbox.id
    assert events.content


def background():
    from opensandbox.models.execd import RunCommandOpts

    return RunCommandOpts(background=True)
