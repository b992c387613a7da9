"""Every operation of this release once with success and once refused, by plain HTTP.

The recorder checks the exchanges; this file makes sure that there are some.
"""

import json
import time
import uuid
from datetime import datetime, timedelta, timezone

import httpx
import pytest

from conftest import minimal

UNKNOWN = str(uuid.UUID(int=1))


def test_health_and_version_need_no_key(server):
    for path in ("/health", "/version"):
        answer = httpx.get(f"http://{server.domain}{path}")
        assert answer.status_code == 200, path
        assert answer.headers["x-request-id"]


def test_unknown_routes_and_methods_have_codes(raw):
    for method, path, status in [
        ("GET", "/nothing/here", 404),
        ("PUT", "/sandboxes", 405),
        ("POST", f"/sandboxes/{UNKNOWN}", 405),
    ]:
        answer = raw.request(method, path)
        assert answer.status_code == status, path
        assert answer.json()["code"] and answer.json()["message"]


def test_capabilities_say_what_this_machine_can(raw):
    told = raw.get("/capabilities").json()
    assert told["runtime"], told


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/sandboxes/{id}"),
        ("DELETE", "/sandboxes/{id}"),
        ("PATCH", "/sandboxes/{id}/metadata"),
        ("POST", "/sandboxes/{id}/pause"),
        ("POST", "/sandboxes/{id}/resume"),
        ("POST", "/sandboxes/{id}/renew-expiration"),
        ("GET", "/sandboxes/{id}/endpoints/44772"),
        ("GET", "/sandboxes/{id}/diagnostics/logs?scope=container"),
        ("GET", "/sandboxes/{id}/diagnostics/events?scope=runtime"),
        ("GET", "/sandboxes/{id}/diagnostics/inspect"),
        ("GET", "/sandboxes/{id}/diagnostics/summary"),
        ("GET", "/sandboxes/{id}/networkpolicy"),
        ("GET", "/sandboxes/{id}/network/events"),
        ("GET", "/sandboxes/{id}/proxy/8000/x"),
    ],
)
def test_unknown_sandboxes_are_404(raw, method, path):
    bodies = {
        "PATCH": {"a": "b"},
        "POST": {"expiresAt": (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()},
    }
    answer = raw.request(method, path.format(id=UNKNOWN), json=bodies.get(method))
    assert answer.status_code == 404, answer.text
    assert answer.json()["code"].endswith("SANDBOX_NOT_FOUND")


def test_lifecycle_operations(raw, pauses):
    made = raw.post("/sandboxes?wait=20", json=minimal())
    assert made.status_code == 202, made.text
    base = f"/sandboxes/{made.json()['id']}"
    try:
        lifecycle_operations(raw, base, pauses)
    finally:
        assert raw.delete(base).status_code == 204
    assert raw.delete(base).status_code == 404


def lifecycle_operations(raw, base, pauses):
    def refuse(status, answer):
        assert answer.status_code == status, answer.text
        assert answer.json()["code"] and answer.json()["message"]

    assert raw.get(f"{base}/endpoints/44772").status_code == 200
    assert raw.get(base).status_code == 200
    assert raw.get("/sandboxes").status_code == 200
    for query in ("page=0", "pageSize=0", "pageSize=201", "page=x"):
        refuse(422, raw.get(f"/sandboxes?{query}"))
    refuse(400, raw.get("/sandboxes?metadata=novalue"))
    assert raw.patch(f"{base}/metadata", json={"a": "b"}).status_code == 200
    refuse(400, raw.patch(f"{base}/metadata", json={"bad key!": "b"}))
    refuse(400, raw.patch(f"{base}/metadata", json={"opensandbox.io/x": "b"}))
    soon = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()
    renewed = raw.post(f"{base}/renew-expiration", json={"expiresAt": soon})
    assert renewed.status_code == 200, renewed.text
    refuse(400, raw.post(f"{base}/renew-expiration", json={"expiresAt": "2001-01-01T00:00:00Z"}))
    refuse(422, raw.post(f"{base}/renew-expiration", json={"expiresAt": "tomorrow"}))
    refuse(422, raw.post(f"{base}/renew-expiration", json={}))
    refuse(400, raw.get(f"{base}/endpoints/0"))
    refuse(400, raw.get(f"{base}/endpoints/65536"))
    refuse(422, raw.get(f"{base}/endpoints/x"))
    for kind, scope in [("logs", "container"), ("events", "runtime")]:
        assert raw.get(f"{base}/diagnostics/{kind}?scope={scope}").status_code == 200
        assert raw.get(f"{base}/diagnostics/{kind}").status_code == 200
        refuse(400, raw.get(f"{base}/diagnostics/{kind}?scope=bogus"))
    for kind in ("inspect", "summary"):
        assert raw.get(f"{base}/diagnostics/{kind}").status_code == 200
    refuse(409, raw.post(f"{base}/resume"))
    refuse(502, raw.get(f"{base}/proxy/9/x"))
    if not pauses:
        refuse(400, raw.post(f"{base}/pause"))
        return
    assert raw.post(f"{base}/pause").status_code == 202
    wait_for(raw, base, "Paused")
    refuse(409, raw.post(f"{base}/pause"))
    refuse(409, raw.get(f"{base}/proxy/44772/ping"))
    assert raw.post(f"{base}/resume").status_code == 202
    wait_for(raw, base, "Running")


def wait_for(raw, base, state):
    deadline = time.monotonic() + 10
    while raw.get(base).json()["status"]["state"] != state:
        assert time.monotonic() < deadline, raw.get(base).text
        time.sleep(0.02)


def test_no_expiry_cannot_be_renewed(raw):
    made = raw.post("/sandboxes?wait=20", json=minimal(timeout=None))
    assert made.status_code == 202, made.text
    base = f"/sandboxes/{made.json()['id']}"
    soon = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()
    answer = raw.post(f"{base}/renew-expiration", json={"expiresAt": soon})
    raw.delete(base)
    assert (answer.status_code, bool(answer.json()["code"])) == (409, True)


def test_usage_events_are_taken_and_checked(raw):
    good = {"eventType": "sandbox.create", "createDurationMs": 5, "success": True}
    assert raw.post("/metrics/events", json=good).status_code == 204
    wrong = raw.post("/metrics/events", json={**good, "createDurationMs": -1})
    assert wrong.status_code in (400, 422), wrong.text


def test_policy_operations(raw, raw_sandbox):
    sandbox_id, _ = raw_sandbox
    where = raw.get(f"/sandboxes/{sandbox_id}/endpoints/18080").json()
    rule = {"action": "allow", "target": "a.test"}
    with httpx.Client(base_url=f"http://{where['endpoint']}", headers=where["headers"]) as port:
        assert port.get("/healthz").status_code == 200
        for method in ("PUT", "POST"):
            put = port.request(method, "/policy", json={"defaultAction": "deny", "egress": [rule]})
            assert (put.status_code, put.json()["mode"]) == (200, "enforcing")
            refuse({400}, port.request(method, "/policy", json={"defaultAction": "maybe"}))
        assert port.get("/policy").json()["policy"] == {"defaultAction": "deny", "egress": [rule]}
        assert port.patch("/policy", json=[{"action": "deny", "target": "b.test"}]).status_code == 200
        refuse({400}, port.patch("/policy", json=[]))
        assert "reason" in port.request("DELETE", "/policy", json=["c.test"]).json()
        assert port.request("DELETE", "/policy", json=["a.test"]).status_code == 200
        refuse({400}, port.request("DELETE", "/policy", json=[]))
        assert port.get("/policy").json()["policy"]["egress"] == [{"action": "deny", "target": "b.test"}]
        assert port.post("/policy").json()["mode"] == "deny_all"
    assert httpx.get(f"http://{where['endpoint']}/policy").status_code == 401
    beneath = f"/sandboxes/{sandbox_id}/networkpolicy"
    assert raw.get(beneath).json()["policy"] == {"defaultAction": "deny", "egress": []}
    assert raw.put(beneath, json={"egress": [rule]}).status_code == 200
    assert raw.patch(beneath, json=[{"action": "deny", "target": "b.test"}]).status_code == 200
    assert raw.request("DELETE", beneath, json=["b.test"]).status_code == 200
    refuse({400}, raw.put(beneath, json={"egress": [{"action": "let", "target": "a.test"}]}))
    refuse({404}, raw.get("/sandboxes/none/networkpolicy"))


def refuse(statuses, answer):
    assert answer.status_code in statuses, f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text}"
    assert answer.json()["code"] and answer.json()["message"], answer.text


@pytest.mark.parametrize(
    "path",
    ["/ping", "/metrics", "/metrics/watch", "/v1/isolated/capabilities", "/v1/isolated/sessions"],
)
def test_the_daemon_is_closed_without_its_token(raw_sandbox, path):
    _, execd = raw_sandbox
    url = f"{str(execd.base_url).rstrip('/')}{path}"
    refuse({401}, httpx.get(url))
    refuse({401}, httpx.get(url, headers={"X-EXECD-ACCESS-TOKEN": "nonsense"}))
    refuse({401}, httpx.get(url, headers={"OPEN-SANDBOX-API-KEY": "nonsense"}))


def command_id(answer):
    assert answer.status_code == 200, answer.text
    first = json.loads(answer.text.split("\n\n")[0])
    assert first["type"] == "init"
    return first["text"]


def test_command_operations(raw_sandbox):
    _, execd = raw_sandbox
    for body in (
        {},
        {"command": "true", "argv": ["true"]},
        {"command": "true", "timeout": -1},
        {"command": "true", "gid": 1},
        {"command": "pwd", "cwd": "/no/such"},
        {"argv": [""]},
        {"argv": []},
    ):
        refuse({400}, execd.post("/command", json=body))
    refuse({400}, execd.post("/command", content="{"))
    refuse({400}, execd.post("/command", content=""))
    done = command_id(execd.post("/command", json={"command": "true"}))
    back = command_id(execd.post("/command", json={"command": "echo x; sleep 900", "background": True}))
    assert execd.get(f"/command/status/{back}").json()["running"] is True
    refuse({404}, execd.get(f"/command/status/{UNKNOWN}"))
    logs = execd.get(f"/command/{back}/logs", params={"cursor": 0})
    assert logs.status_code == 200
    assert int(logs.headers["EXECD-COMMANDS-TAIL-CURSOR"]) >= 0
    refuse({400}, execd.get(f"/command/{back}/logs", params={"cursor": -1}))
    refuse({400, 404}, execd.get(f"/command/{UNKNOWN}/logs"))
    assert execd.delete("/command", params={"id": back}).status_code == 200
    refuse({400}, execd.delete("/command"))
    refuse({400}, execd.delete("/command", params={"id": UNKNOWN}))
    refuse({400}, execd.delete("/command", params={"id": done}))


def upload(execd, path, data, **more):
    metadata = json.dumps({"path": path, **more})
    return execd.post(
        "/files/upload",
        files=[
            ("metadata", ("metadata", metadata, "application/json")),
            ("file", ("file", data, "application/octet-stream")),
        ],
    )


def test_file_operations(raw_sandbox):
    _, execd = raw_sandbox
    assert upload(execd, "/tmp/f", b"abc\ndef\n").status_code == 200
    refuse({400}, execd.post("/files/upload", content=b"no multipart"))
    refuse({400}, upload(execd, "", b"x"))
    refuse({400}, upload(execd, "/tmp", b"x"))
    assert execd.get("/files/info", params={"path": "/tmp/f"}).status_code == 200
    refuse({404}, execd.get("/files/info", params={"path": "/tmp/none"}))
    download = execd.get("/files/download", params={"path": "/tmp/f"})
    assert (download.status_code, download.content) == (200, b"abc\ndef\n")
    part = execd.get("/files/download", params={"path": "/tmp/f"}, headers={"Range": "bytes=1-2"})
    assert (part.status_code, part.content) == (206, b"bc")
    refuse({400}, execd.get("/files/download"))
    refuse({400}, execd.get("/files/download", params={"path": "/tmp"}))
    refuse({404}, execd.get("/files/download", params={"path": "/tmp/none"}))
    refuse({416}, execd.get("/files/download", params={"path": "/tmp/f"}, headers={"Range": "x"}))
    refuse({400}, execd.get("/files/download", params={"path": "/tmp/f", "offset": "0"}))
    found = execd.get("/files/search", params={"path": "/tmp", "pattern": "f"})
    assert [entry["path"] for entry in found.json()] == ["/tmp/f"]
    refuse({400}, execd.get("/files/search"))
    refuse({404}, execd.get("/files/search", params={"path": "/tmp/none"}))
    replaced = execd.post("/files/replace?verbose=true", json={"/tmp/f": {"old": "a", "new": "b"}})
    assert replaced.json() == {"/tmp/f": {"replacedCount": 1}}
    quiet = execd.post("/files/replace", json={"/tmp/f": {"old": "b", "new": "a"}})
    assert (quiet.status_code, quiet.content) == (200, b"")
    refuse({400}, execd.post("/files/replace", json={"/tmp/f": {"old": "", "new": "x"}}))
    refuse({404}, execd.post("/files/replace", json={"/tmp/none": {"old": "a", "new": "x"}}))
    assert execd.post("/files/permissions", json={"/tmp/f": {"mode": 600}}).status_code == 200
    refuse({400}, execd.post("/files/permissions", json={"/tmp/f": {"mode": 999}}))
    refuse({404}, execd.post("/files/permissions", json={"/tmp/none": {"mode": 600}}))
    assert execd.post("/files/mv", json=[{"src": "/tmp/f", "dest": "/tmp/g"}]).status_code == 200
    refuse({404}, execd.post("/files/mv", json=[{"src": "/tmp/f", "dest": "/tmp/h"}]))
    refuse({400}, execd.post("/files/mv", json={"src": 1}))
    assert execd.delete("/files", params={"path": "/tmp/g"}).status_code == 200
    refuse({400}, execd.delete("/files", params={"path": "/tmp"}))


def test_directory_operations(raw_sandbox):
    _, execd = raw_sandbox
    assert execd.post("/directories", json={"/tmp/d/e": {"mode": 755}}).status_code == 200
    refuse({400}, execd.post("/directories", json=[]))
    assert upload(execd, "/tmp/file", b"").status_code == 200
    refuse({400}, execd.post("/directories", json={"/tmp/file": {}}))
    listed = execd.get("/directories/list", params={"path": "/tmp/d"})
    assert [entry["path"] for entry in listed.json()] == ["/tmp/d/e"]
    refuse({404}, execd.get("/directories/list", params={"path": "/tmp/none"}))
    refuse({400}, execd.get("/directories/list", params={"path": "/tmp/file"}))
    refuse({400}, execd.get("/directories/list", params={"path": "/tmp", "depth": "-1"}))
    assert execd.delete("/directories", params={"path": "/tmp/d"}).status_code == 200
    refuse({400}, execd.delete("/directories"))


def test_metrics_operations(raw_sandbox):
    _, execd = raw_sandbox
    assert execd.get("/metrics").status_code == 200
    with execd.stream("GET", "/metrics/watch") as watched:
        assert watched.status_code == 200
        line = next(watched.iter_lines())
    assert json.loads(line)["timestamp"] > 0
