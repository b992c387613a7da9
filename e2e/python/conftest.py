"""Fixtures: one server for the whole run, a client of each kind, a sandbox per test."""

import json
import os

import httpx
import pytest

import clients
import osb

# An ordinary user's server refuses gVisor and snapshots, which these modules show as root; that it says so is shown by
# `test_weaker.py`.
ONLY_ROOT = ["test_gvisor.py", "test_gvisor_names.py", "test_snapshots.py"]
collect_ignore = ONLY_ROOT if os.environ.get("OSB_E2E_USER") else []

# Lines of a failure that are told again at the end of the run.
REASON_LINES = 12


def pytest_runtest_logreport(report):
    """One line per finished test for `cargo xtask`, if it asked for that."""
    path = os.environ.get("OSB_E2E_RESULTS")
    if not path:
        return
    # A test is one line: its call, or the set-up or tear-down that went wrong.
    if report.when == "call" or report.outcome != "passed":
        outcome = "ignored" if report.outcome == "skipped" else report.outcome
        reason = "\n".join(report.longreprtext.splitlines()[-REASON_LINES:]) if outcome == "failed" else ""
        with open(path, "a") as results:
            results.write(json.dumps({"name": report.nodeid, "outcome": outcome, "reason": reason}) + "\n")


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    os.environ["OPENSANDBOX_DISABLE_METRICS"] = ""
    with osb.running(tmp_path_factory, "osb") as started:
        yield started


@pytest.fixture(params=["sync", "async"])
def client(request, server):
    made = clients.Client(request.param, server.domain, server.key)
    yield made
    made.close()


@pytest.fixture
def one_client(server):
    """For what does not depend on which client asks."""
    made = clients.Client("sync", server.domain, server.key)
    yield made
    made.close()


@pytest.fixture
def sandbox(client):
    return client.create()


def plain(server):
    """A client by plain HTTP, with the key."""
    return httpx.Client(
        base_url=f"http://{server.domain}/v1",
        headers={"OPEN-SANDBOX-API-KEY": server.key, "User-Agent": "raw"},
        timeout=60,
    )


@pytest.fixture(scope="module")
def raw(server):
    """Plain HTTP with the key, for what the published client cannot send."""
    with plain(server) as made:
        yield made


@pytest.fixture(scope="module")
def pauses(raw):
    """Whether sandboxes of this server can be paused; the answer is data, not a guess."""
    return raw.get("/capabilities").json()["runtime"]["pause"]


@pytest.fixture
def raw_sandbox(raw):
    """A running sandbox by plain HTTP: its id and a client of its daemon."""
    answer = raw.post("/sandboxes", json=minimal())
    assert answer.status_code == 202, answer.text
    sandbox_id = answer.json()["id"]
    endpoint = raw.get(f"/sandboxes/{sandbox_id}/endpoints/44772")
    assert endpoint.status_code == 200, endpoint.text
    where = endpoint.json()
    with httpx.Client(
        base_url=f"http://{where['endpoint']}",
        headers={**where["headers"], "User-Agent": "raw"},
        timeout=60,
    ) as execd:
        yield sandbox_id, execd
    raw.delete(f"/sandboxes/{sandbox_id}")


def minimal(**changes):
    """The smallest good create body, changed."""
    body = {
        "image": {"uri": "host"},
        "entrypoint": ["sleep", "infinity"],
        "timeout": 300,
        "resourceLimits": {},
    }
    body.update(changes)
    return {key: value for key, value in body.items() if value is not ...}
