"""Wrong requests are refused by name, and failing creates tell their cause."""

import http.server
import json
import threading
import time
import uuid
from datetime import timedelta

import pytest
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.sandboxes import (
    OSSFS,
    PVC,
    CredentialProxyConfig,
    Host,
    NetworkPolicy,
    NetworkRule,
    PlatformSpec,
    SandboxImageAuth,
    SandboxImageSpec,
    Volume,
)

from conftest import minimal

# One or more wrong values for every field of the create body: changes of the
# smallest good body, and the word by which the message must name the field.
WRONG = [
    ("image-missing", {"image": ...}, "image"),
    ("image-null", {"image": None}, "image"),
    ("image-text", {"image": "host"}, "image"),
    ("image-uri-blank", {"image": {"uri": "  "}}, "image"),
    ("image-uri-number", {"image": {"uri": 7}}, "uri"),
    ("image-uri-spaces", {"image": {"uri": "a b c"}}, "image.uri"),
    ("image-auth-half", {"image": {"uri": "x", "auth": {"username": "u"}}}, "image.auth"),
    ("image-auth-on-host", {"image": {"uri": "host", "auth": {"username": "u", "password": "p"}}}, "image.auth"),
    ("snapshot", {"snapshotId": "x", "image": ...}, "snapshotId"),
    ("snapshot-and-image", {"snapshotId": "x"}, "snapshotId"),
    ("template", {"templateId": "x", "image": ...}, "templateId"),
    ("platform-windows", {"platform": {"os": "windows", "arch": "amd64"}}, "platform.os"),
    ("platform-os", {"platform": {"os": "beos", "arch": "amd64"}}, "platform.os"),
    ("platform-arch", {"platform": {"os": "linux", "arch": "mips"}}, "platform.arch"),
    ("platform-half", {"platform": {"os": "linux"}}, "arch"),
    ("timeout-short", {"timeout": 59}, "timeout"),
    ("timeout-negative", {"timeout": -1}, "timeout"),
    ("timeout-text", {"timeout": "soon"}, "timeout"),
    ("timeout-fraction", {"timeout": 60.5}, "timeout"),
    ("timeout-unrepresentable", {"timeout": 10**15}, "timeout"),
    ("limits-missing", {"resourceLimits": ...}, "resourceLimits"),
    ("limits-number", {"resourceLimits": {"cpu": 1}}, "cpu"),
    ("limits-cpu", {"resourceLimits": {"cpu": "lots"}}, "resourceLimits.cpu"),
    ("limits-cpu-zero", {"resourceLimits": {"cpu": "0"}}, "resourceLimits.cpu"),
    ("limits-memory", {"resourceLimits": {"memory": "1.5G"}}, "resourceLimits.memory"),
    ("limits-memory-tiny", {"resourceLimits": {"memory": "1"}}, "resourceLimits.memory"),
    ("os_019-gpu-one", {"resourceLimits": {"gpu": "1"}}, "resourceLimits.gpu"),
    ("os_019-gpu-all", {"resourceLimits": {"gpu": "all"}}, "resourceLimits.gpu"),
    ("os_019-gpu-bad", {"resourceLimits": {"gpu": "abc"}}, "resourceLimits.gpu"),
    ("os_019-unknown-limit", {"resourceLimits": {"quantum": "1"}}, "resourceLimits.quantum"),
    ("requests", {"resourceRequests": {"cpu": "1"}}, "resourceRequests"),
    ("env-list", {"env": ["A=1"]}, "env"),
    ("env-number", {"env": {"A": 1}}, "env"),
    ("env-name", {"env": {"A=B": "1"}}, "env"),
    ("env-reserved", {"env": {"OPENSANDBOX_LIFECYCLE": "{}"}}, "OPENSANDBOX_LIFECYCLE"),
    ("env-egress", {"env": {"OPENSANDBOX_EGRESS_LOG_LEVEL": "x"}}, "OPENSANDBOX_EGRESS_LOG_LEVEL"),
    ("metadata-key", {"metadata": {"bad key!": "1"}}, "metadata"),
    ("metadata-value", {"metadata": {"a": "b" * 64}}, "metadata"),
    ("metadata-reserved", {"metadata": {"opensandbox.io/x": "1"}}, "opensandbox.io/"),
    ("metadata-number", {"metadata": {"a": 1}}, "metadata"),
    ("lifecycle", {"lifecycle": {"preStart": {"command": [" "]}}}, "lifecycle.preStart.command"),
    ("entrypoint-missing", {"entrypoint": ...}, "entrypoint"),
    ("entrypoint-empty", {"entrypoint": []}, "entrypoint"),
    ("entrypoint-blank", {"entrypoint": [" "]}, "entrypoint"),
    ("entrypoint-text", {"entrypoint": "sleep 1"}, "entrypoint"),
    ("policy-action", {"networkPolicy": {"defaultAction": "maybe"}}, "networkPolicy.defaultAction"),
    ("policy-target", {"networkPolicy": {"egress": [{"action": "allow", "target": " "}]}}, "networkPolicy.egress[0].target"),
    ("policy-rule", {"networkPolicy": {"egress": [{"action": "let", "target": "x.org"}]}}, "networkPolicy.egress[0].action"),
    ("policy-field", {"networkPolicy": {"ingress": []}}, "networkPolicy.ingress"),
    ("credential-proxy-alone", {"credentialProxy": {"enabled": True}}, "credentialProxy"),
    ("credential-setting", {"env": {"OPENSANDBOX_EGRESS_CREDENTIAL_VAULT_REQUIRE_TLS": "1"}}, "REQUIRE_TLS"),
    ("secure-access-text", {"secureAccess": "perhaps"}, "secureAccess"),
    ("os_011-socket", {"volumes": [{"name": "v", "mountPath": "/v", "host": {"path": "/var/run/docker.sock"}}]}, "volumes"),
    ("os_011-root", {"volumes": [{"name": "v", "mountPath": "/v", "host": {"path": "/"}}]}, "volumes"),
    ("os_011-etc", {"volumes": [{"name": "v", "mountPath": "/v", "host": {"path": "/etc"}}]}, "volumes"),
    ("os_011-proc", {"volumes": [{"name": "v", "mountPath": "/v", "host": {"path": "/proc"}}]}, "volumes"),
    ("volume-claim", {"volumes": [{"name": "v", "mountPath": "/v", "pvc": {"claimName": "C"}}]}, "volumes[0].pvc.claimName"),
    ("volume-class", {"volumes": [{"name": "v", "mountPath": "/v", "pvc": {"claimName": "c", "storageClass": "fast"}}]}, "volumes[0].pvc.storageClass"),
    ("volume-place", {"volumes": [{"name": "v", "mountPath": "/proc/v", "pvc": {"claimName": "c"}}]}, "volumes[0].mountPath"),
    ("volume-bucket", {"volumes": [{"name": "v", "mountPath": "/v", "ossfs": {"bucket": "b", "endpoint": "e"}}]}, "volumes"),
    ("volume-none", {"volumes": [{"name": "v", "mountPath": "/v"}]}, "volumes"),
    ("volume-two", {"volumes": [{"name": "v", "mountPath": "/v", "host": {"path": "/x"}, "pvc": {"claimName": "c"}}]}, "volumes"),
    ("volumes-object", {"volumes": {}}, "volumes"),
    ("extension-pool", {"extensions": {"poolRef": " "}}, "poolRef"),
    ("extension-renew", {"extensions": {"access.renew.extend.seconds": "1"}}, "access.renew.extend.seconds"),
    ("extension-unknown", {"extensions": {"nobody.knows": "1"}}, "nobody.knows"),
    ("extension-number", {"extensions": {"opensandbox.extensions.a": 1}}, "extensions"),
]


@pytest.mark.parametrize(("change", "named"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_a_wrong_field_is_refused_by_name(raw, change, named):
    before = raw.get("/sandboxes").json()["pagination"]["totalItems"]
    answer = raw.post("/sandboxes", json=minimal(**change), headers={"X-Request-ID": "mine"})
    # What a snapshot's id names is not there: published as 404.
    assert answer.status_code in ((400, 404, 422) if named == "snapshotId" else (400, 422)), answer.text
    body = answer.json()
    assert body["code"], body
    assert named in body["message"], body
    assert answer.headers["x-request-id"] == "mine"
    if answer.status_code == 422:
        assert body["detail"][0]["loc"], body
    assert "/var/run" not in body["message"] and "/etc" not in body["message"]
    assert raw.get("/sandboxes").json()["pagination"]["totalItems"] == before


@pytest.mark.parametrize("body", ["", "{", "[]", "null", '"x"', "{}"])
def test_a_body_that_is_no_request_is_refused(raw, body):
    answer = raw.post("/sandboxes", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["code"] and answer.json()["message"]


def volume(**backend):
    return [Volume(name="v", mountPath="/v", **backend)]


# The same through the published client, as far as it lets a wrong value out.
WRONG_IN_SDK = {
    "image": {"image": SandboxImageSpec("a b")},
    "auth": {"image": SandboxImageSpec("host", auth=SandboxImageAuth(username="u", password="p"))},
    "snapshot": {"image": None, "snapshot_id": "none"},
    "platform": {"platform": PlatformSpec(os="windows", arch="amd64")},
    "timeout": {"timeout": timedelta(seconds=5)},
    "limits": {"resource": {"cpu": "lots"}},
    "requests": {"resource_requests": {"cpu": "1"}},
    "env": {"env": {"A=B": "1"}},
    "metadata": {"metadata": {"bad key!": "1"}},
    "entrypoint": {"entrypoint": [" "]},
    "policy": {"network_policy": NetworkPolicy(egress=[NetworkRule(action="allow", target="no name")])},
    "credential-proxy": {"credential_proxy": CredentialProxyConfig(enabled=True)},
    "host-volume": {"volumes": volume(host=Host(path="/etc"))},
    "claim": {"volumes": volume(pvc=PVC(claimName="c", createIfNotExists=False))},
    "bucket": {
        "volumes": volume(
            ossfs=OSSFS(bucket="bkt", endpoint="e", accessKeyId="i", accessKeySecret="s")
        )
    },
    "extensions": {"extensions": {"poolRef": " "}},
}


@pytest.mark.parametrize("name", WRONG_IN_SDK)
def test_the_client_raises_status_code_and_request_id(client, name):
    with pytest.raises(SandboxApiException) as caught:
        client.create(**WRONG_IN_SDK[name])
    assert caught.value.status_code in ((400, 404) if name == "snapshot" else (400, 422)), caught.value
    assert caught.value.request_id
    body = json.loads(caught.value.response_body or b"{}")
    code = caught.value.error.code
    assert "::" in code or "INVALID" in code or body.get("code"), caught.value


class Registry(http.server.BaseHTTPRequestHandler):
    """A registry on loopback that has nothing."""

    def do_GET(self):
        known = self.path in ("/v2/", "/v2")
        body = b"{}" if known else json.dumps(
            {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}
        ).encode()
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def empty_registry():
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{served.server_port}"
    served.shutdown()


def fails_with_cause(client, started_within, words, **arguments):
    """The create fails for the published client, soon, with a code and the cause in words."""
    started = time.monotonic()
    with pytest.raises(SandboxApiException) as caught:
        client.create(**arguments)
    assert time.monotonic() - started < started_within
    assert caught.value.error.code != "UNEXPECTED_RESPONSE", caught.value
    assert caught.value.request_id
    assert 400 <= caught.value.status_code < 600
    for word in words:
        assert word in str(caught.value), caught.value


def test_an_unknown_image_fails_with_its_name(client, empty_registry):
    image = f"{empty_registry}/nobody/made-this:1"
    fails_with_cause(client, 10, ["nobody/made-this"], image=image)


def test_a_registry_that_is_not_there_is_told(client):
    fails_with_cause(client, 20, ["127.0.0.1:9"], image="127.0.0.1:9/nobody/made-this:1")


def test_a_missing_entrypoint_fails_with_its_name(client):
    fails_with_cause(client, 10, ["/no/such/program"], entrypoint=["/no/such/program"])


def test_os_010_a_failed_create_leaves_only_its_record(raw, empty_registry):
    image = f"{empty_registry}/nobody/made-this:{uuid.uuid4().hex[:8]}"
    made = raw.post("/sandboxes", json=minimal(image={"uri": image}))
    assert made.status_code == 202, made.text
    sandbox_id = made.json()["id"]
    looked_up = raw.get(f"/sandboxes/{sandbox_id}/endpoints/44772")
    assert looked_up.status_code >= 400
    info = raw.get(f"/sandboxes/{sandbox_id}").json()
    assert info["status"]["state"] == "Failed"
    assert "nobody/made-this" in info["status"]["message"]
    assert raw.delete(f"/sandboxes/{sandbox_id}").status_code == 204
    assert raw.get(f"/sandboxes/{sandbox_id}").status_code == 404


def test_a_wrong_key_is_told_at_once(server):
    import clients

    client = clients.Client("sync", server.domain, "not-the-key")
    with pytest.raises(SandboxApiException) as caught:
        client.create()
    assert (caught.value.status_code, caught.value.error.code) == (401, "INVALID_API_KEY")
    assert caught.value.request_id
    client.close()


def test_no_key_is_told_apart_from_a_wrong_one(server):
    import httpx

    answer = httpx.get(f"http://{server.domain}/v1/sandboxes")
    assert (answer.status_code, answer.json()["code"]) == (401, "MISSING_API_KEY")
