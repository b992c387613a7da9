"""Who is told of refusals: the operator's webhook, and whoever reads the metrics."""

import http.server
import json
import queue
import threading

import httpx
import pytest
from opensandbox.models.sandboxes import NetworkPolicy, NetworkRule

import osb

# Seconds within which the webhook is told.
PATIENCE_SECONDS = 20


@pytest.fixture(scope="module")
def hook():
    """What the webhook was told; its first call fails, and is made again."""
    told = queue.Queue()
    statuses = [500]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = statuses.pop() if statuses else 204
            self.send_response(status)
            self.end_headers()
            told.put((status, json.loads(body)))

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/told", told
    server.shutdown()


@pytest.fixture(scope="module")
def server(hook, tmp_path_factory):
    with osb.running(tmp_path_factory, "osb-telling", f'[egress]\ndeny_webhook = "{hook[0]}"\n') as started:
        yield started


def test_refusals_are_posted_and_counted(server, one_client, hook):
    sandbox = one_client.create(
        network_policy=NetworkPolicy(defaultAction="deny", egress=[NetworkRule(action="allow", target="allowed.test")])
    )
    assert sandbox.commands.run("getent hosts refused.test").exit_code != 0
    _, told = hook
    first = told.get(timeout=PATIENCE_SECONDS)
    again = told.get(timeout=PATIENCE_SECONDS)
    assert (first[0], again[0], first[1]) == (500, 204, again[1]), "a call that failed is made again"
    assert {key: again[1][key] for key in ("hostname", "source", "sandboxId", "kind", "reason")} == {
        "hostname": "refused.test",
        "source": "opensandbox-egress",
        "sandboxId": sandbox.id,
        "kind": "question",
        "reason": "default",
    }
    address = f"http://{server.domain}/metrics"
    assert httpx.get(address).status_code == 401
    text = httpx.get(address, headers={"OPEN-SANDBOX-API-KEY": server.key}).text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert int(lines['egress_policy_denied_total{kind="question",reason="default"}']) >= 1
    assert lines["egress_up"] == "1" and "refused.test" not in text, text
