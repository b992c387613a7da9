"""The credential vault of a sandbox: its published calls, what outlives whom, and that no value shows anywhere.

What a vault does to requests needs an origin: see `test_credentials.py`.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import time

import httpx
import pytest
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.sandboxes import (
    Credential,
    CredentialAuth,
    CredentialBinding,
    CredentialMatch,
    CredentialProxyConfig,
    NetworkPolicy,
    NetworkRule,
)

import clients
import osb
from conftest import minimal, plain

# Is in every request of these tests, and in nothing that is kept or told.
PLANTED = "planted-8f1c-secret-value"

# Seconds within which a successor must serve.
PATIENCE_SECONDS = 20


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of this module's own: some tests kill it."""
    with osb.running(tmp_path_factory, "osb-vault") as started:
        yield started


@pytest.fixture
def held(server):
    return server


def make(client, *hosts):
    rules = [NetworkRule(action="allow", target=host) for host in hosts or ("api.example.com", "*.example.org")]
    return client.create(
        network_policy=NetworkPolicy(defaultAction="deny", egress=rules),
        credential_proxy=CredentialProxyConfig(enabled=True),
    )


def credential(name="token", value=PLANTED):
    return Credential(name=name, source={"type": "inline", "value": value})


def binding(name="api", host="api.example.com", token="token"):
    return CredentialBinding(
        name=name,
        match=CredentialMatch(hosts=[host]),
        auth=CredentialAuth(type="apiKey", name="PRIVATE-token", credential=token),
    )


def fill(sandbox):
    return sandbox.credential_vault.create(credentials=[credential()], bindings=[binding()])


def names(items):
    return [(item.name, item.revision) for item in items]


@pytest.fixture
def refused():
    """Expects a refusal with this status; its message."""

    def check(status, call, *args, **kwargs):
        with pytest.raises(SandboxApiException) as caught:
            call(*args, **kwargs)
        assert caught.value.status_code == status, caught.value
        assert PLANTED not in str(caught.value)
        return caught.value.response_body and json.loads(caught.value.response_body)["message"] or str(caught.value)

    return check


def test_a_vault_is_made_changed_read_and_deleted_by_the_published_clients(client, refused):
    vault = make(client).credential_vault
    refused(404, vault.get)
    made = vault.create(credentials=[credential()], bindings=[binding()])
    assert (made.revision, names(made.credentials), names(made.bindings)) == (1, [("token", 1)], [("api", 1)])
    assert made.credentials[0].source_type == "inline"
    assert (made.bindings[0].auth.type, made.bindings[0].auth.name) == ("apiKey", "Private-Token")
    assert made.bindings[0].match.schemes == ["https"]
    changed = vault.patch(
        expected_revision=1,
        credentials={"add": [credential("second")]},
        bindings={"add": [binding("more", "*.example.org", "second")]},
    )
    assert (changed.revision, names(changed.credentials)) == (2, [("second", 2), ("token", 1)])
    assert names(changed.bindings) == [("api", 2), ("more", 2)]
    # A published client can send a value again, and must to change it.
    replaced = vault.patch(credentials={"replace": [credential(value=PLANTED + "2")]})
    assert names(replaced.credentials) == [("second", 2), ("token", 3)]
    assert vault.get() == replaced
    assert names(vault.list_credentials()) == [("second", 2), ("token", 3)]
    assert names(vault.list_bindings()) == [("api", 3), ("more", 3)]
    assert vault.get_credential("token").revision == 3
    assert vault.get_binding("more").match.hosts == ["*.example.org"]
    gone = vault.patch(bindings={"delete": ["more"]}, credentials={"delete": ["second"]})
    assert (gone.revision, names(gone.credentials), names(gone.bindings)) == (4, [("token", 3)], [("api", 4)])
    vault.delete()
    refused(404, vault.get)
    assert fill_again(vault).revision == 1


def fill_again(vault):
    return vault.create(credentials=[credential()], bindings=[binding()])


def test_conflicts_and_mistakes_are_told_by_status_and_change_nothing(client, refused):
    sandbox = make(client)
    vault = sandbox.credential_vault
    assert "not found" in refused(404, vault.patch, credentials={"delete": ["token"]})
    refused(404, vault.delete)
    made = fill(sandbox)
    assert "already exists" in refused(409, fill, sandbox)
    refused(409, vault.patch, expected_revision=7, credentials={"add": [credential("second")]})
    refused(400, vault.patch, credentials={"add": [credential()]})
    refused(400, vault.patch, credentials={"replace": [credential("none")]})
    # A binding refers to it.
    refused(400, vault.patch, credentials={"delete": ["token"]})
    refused(400, vault.patch, bindings={"add": [binding("twice")]})
    refused(400, vault.patch, bindings={"add": [binding("elsewhere", "other.test")]})
    refused(404, vault.get_credential, "none")
    refused(404, vault.get_binding, "none")
    assert vault.get() == made


def test_os_088_a_policy_does_not_leave_a_binding_behind(client, refused):
    sandbox = make(client)
    fill(sandbox)
    before = sandbox.get_egress_policy()
    words = "credential vault policy validation: "
    assert words in refused(400, sandbox.patch_egress_rules, [NetworkRule(action="deny", target="api.example.com")])
    assert words in refused(400, sandbox.delete_egress_rules, ["api.example.com"])
    assert sandbox.get_egress_policy() == before
    sandbox.delete_egress_rules(["*.example.org"])
    sandbox.credential_vault.delete()
    sandbox.delete_egress_rules(["api.example.com"])
    assert sandbox.get_egress_policy().egress == []


@pytest.fixture
def port(held, one_client):
    """A sandbox and plain HTTP to its vault, with the published header."""
    sandbox = make(one_client)
    with plain(held) as http:
        where = http.get(f"/sandboxes/{sandbox.id}/endpoints/18080").json()
    headers = {**where["headers"], "User-Agent": "raw"}
    with httpx.Client(base_url=f"http://{where['endpoint']}", headers=headers, timeout=60) as made:
        yield sandbox, made


def body():
    return {
        "credentials": [{"name": "token", "source": {"value": PLANTED}}],
        "bindings": [
            {"name": "api", "match": {"hosts": ["api.example.com"]}, "auth": {"type": "bearer", "credential": "token"}}
        ],
    }


def refuse(status, answer):
    assert answer.status_code == status, f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text}"
    assert answer.json()["code"] and answer.json()["message"], answer.text
    assert PLANTED not in answer.text
    return answer


def test_the_calls_of_the_vault_one_by_one(port):
    _, http = port
    for path in ("", "/credentials", "/bindings", "/credentials/token", "/bindings/api"):
        refuse(404, http.get(f"/credential-vault{path}"))
    refuse(404, http.patch("/credential-vault", json={}))
    refuse(404, http.delete("/credential-vault"))
    refuse(400, http.post("/credential-vault", json={"credentials": [PLANTED]}))
    refuse(400, http.post("/credential-vault", json={**body(), PLANTED[:7]: 1}))
    refuse(400, http.post("/credential-vault", content=b"{"))
    large = {"credentials": [{"name": "token", "source": {"value": PLANTED * 100_000}}], "bindings": []}
    refuse(400, http.post("/credential-vault", json=large))
    assert http.post("/credential-vault", json=body()).status_code == 201
    refuse(409, http.post("/credential-vault", json=body()))
    # An empty change is one.
    assert http.patch("/credential-vault", json={}).json()["revision"] == 2
    for path in ("", "/credentials", "/bindings", "/credentials/token", "/bindings/api"):
        answer = http.get(f"/credential-vault{path}")
        assert (answer.status_code, answer.json()["revision"]) in ((200, 2), (200, 1)), answer.text
    refuse(405, http.put("/credential-vault", json={}))
    refuse(405, http.post("/credential-vault/credentials", json={}))
    for headers in ({}, {"OPENSANDBOX-EGRESS-AUTH": "nonsense"}):
        for path in ("/credential-vault", "/credential-vault/credentials"):
            refuse(401, httpx.get(f"{http.base_url}{path.lstrip('/')}", headers=headers))
        # What the sidecar shows to its interceptor alone: refused before anybody is asked who he is.
        refuse(403, httpx.get(f"{http.base_url}credential-vault/_active", headers=headers))
    refuse(403, http.get("/credential-vault/_active"))
    assert http.delete("/credential-vault").status_code == 204


def test_a_sandbox_that_was_not_made_for_it_has_no_vault(held, raw_plain):
    refuse(412, raw_plain.post("/credential-vault", json=body()))
    refuse(412, raw_plain.patch("/credential-vault", json={}))
    refuse(404, raw_plain.get("/credential-vault"))
    refuse(404, raw_plain.delete("/credential-vault"))
    with plain(held) as http:
        assert http.get("/capabilities").json()["features"]["credentialProxy"] is True
        setting = "OPENSANDBOX_EGRESS_CREDENTIAL_VAULT_REQUIRE_TLS"
        answer = http.post("/sandboxes", json=minimal(env={setting: "1"}))
        assert (answer.status_code, setting in answer.json()["message"]) == (400, True), answer.text


@pytest.fixture
def raw_plain(held):
    with plain(held) as http:
        sandbox_id = http.post("/sandboxes?wait=30", json=minimal()).json()["id"]
        where = http.get(f"/sandboxes/{sandbox_id}/endpoints/18080").json()
        headers = {**where["headers"], "User-Agent": "raw"}
        with httpx.Client(base_url=f"http://{where['endpoint']}", headers=headers, timeout=60) as made:
            yield made
        http.delete(f"/sandboxes/{sandbox_id}")


def test_os_088_what_a_create_demands_of_its_vault(held):
    with plain(held) as http:
        prefix = "OPENSANDBOX_EGRESS_CREDENTIAL_VAULT_"
        fields = {
            "networkPolicy": {"egress": [{"action": "allow", "target": "api.example.com"}]},
            "credentialProxy": {"enabled": True},
            "env": {f"{prefix}REQUIRE_SCOPED_MATCH": "true", f"{prefix}REQUIRE_TLS": "1"},
        }
        sandbox_id = http.post("/sandboxes?wait=30", json=minimal(**fields)).json()["id"]
        where = http.get(f"/sandboxes/{sandbox_id}/endpoints/18080").json()
        at = f"http://{where['endpoint']}/credential-vault"
        forwarded = {**where["headers"], "X-Forwarded-Proto": "https"}
        refuse(426, httpx.post(at, headers=forwarded, json=body()))
        refuse(426, httpx.patch(at, headers=forwarded, json={}))
        refuse(400, httpx.post(at, headers=where["headers"], json=body()))
        scoped = body()
        scoped["bindings"][0]["match"] |= {"methods": ["GET"], "paths": ["/v1/*"]}
        assert httpx.post(at, headers=where["headers"], json=scoped).status_code == 201
        assert http.delete(f"/sandboxes/{sandbox_id}").status_code == 204


def until(is_so, why):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, why()
        time.sleep(0.02)


def kill(held, word):
    [pid] = held.children(word)
    os.kill(pid, signal.SIGKILL)
    until(lambda: held.children(word) not in ([], [pid]), held.log)


def test_os_089_a_vault_outlives_the_egress_process_and_the_server(held, one_client):
    sandbox = make(one_client)
    late = make(one_client)
    made = fill(sandbox)
    for word in ("egress-proxy", "api-server", "egress-proxy"):
        kill(held, word)
        until(lambda: answers(sandbox.credential_vault.get) == made, held.log)
    changed = sandbox.credential_vault.patch(credentials={"add": [credential("second")]})
    assert changed.revision == 2
    # The first secret of a sandbox that was made without any.
    assert fill(late).revision == 1


def answers(call):
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - a process that has just begun answers nobody yet
        return error


def test_os_078_a_change_is_whole_whoever_asked_for_it_leaves(held, one_client):
    sandbox = make(one_client)
    fill(sandbox)
    host, port = held.direct.split(":")
    for turn in range(50):
        change = {"credentials": {"add": [{"name": f"c{turn}", "source": {"value": PLANTED}}]}}
        text = json.dumps(change)
        with socket.create_connection((host, int(port))) as caller:
            caller.sendall(
                f"PATCH /sandboxes/{sandbox.id}/proxy/18080/credential-vault HTTP/1.1\r\nHost: {held.direct}\r\n"
                f"OPEN-SANDBOX-API-KEY: {held.key}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()
            )
    state = sandbox.credential_vault.patch()
    # Each was made or not, one revision each.
    assert state.revision == 2 + len(state.credentials) - 1, state


def test_os_089_a_vault_whose_holders_are_all_gone_is_lost_and_says_so(held, one_client):
    sandbox, late = make(one_client), make(one_client)
    fill(sandbox)
    held.kill()
    held.start()
    found = clients.Client("sync", held.domain, held.key)
    again, later = found.connect(sandbox.id), found.connect(late.id)
    with plain(held) as http:
        where = http.get(f"/sandboxes/{sandbox.id}/endpoints/18080").json()
        at = f"http://{where['endpoint']}/credential-vault"
        ask = lambda: httpx.get(at, headers=where["headers"])  # noqa: E731
        until(lambda: ask().status_code == 404, held.log)
        assert refuse(404, ask()).json()["code"] == "SANDBOX::CREDENTIAL_VAULT_LOST"
        # Its hosts are closed, and stay bound.
        refuse(400, http.put(f"/sandboxes/{sandbox.id}/networkpolicy", json={}))
        assert httpx.delete(at, headers=where["headers"]).status_code == 204
        assert refuse(404, ask()).json()["code"] == "SANDBOX::CREDENTIAL_VAULT_NOT_FOUND"
        # Its programs still trust what shows them the host.
        assert fill(again).revision == 1
        assert again.credential_vault.get().revision == 1
    # One that had none has lost nothing.
    assert fill(later).revision == 1
    again.kill()
    later.kill()
    found.close()


def in_memory(pid):
    """Where in the memory of a process the planted value is."""
    found = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            addresses, rights, *rest = line.split()
            if "r" not in rights or rest[-1].startswith("[v"):
                continue
            first, behind = (int(part, 16) for part in addresses.split("-"))
            memory.seek(first)
            try:
                found += [rest[-1]] * memory.read(behind - first).count(PLANTED.encode())
            except OSError:
                # It was given back meanwhile.
                pass
    return found


def test_attack_32_no_value_is_kept_or_told_anywhere(held, one_client):
    sandbox = make(one_client)
    fill(sandbox)
    with plain(held) as http:
        at = f"/sandboxes/{sandbox.id}/proxy/18080/credential-vault"
        refuse(400, http.post(at.removeprefix("/v1"), json={"credentials": [{"name": PLANTED, "source": PLANTED}]}))
        told = [http.get(f"/sandboxes/{sandbox.id}/diagnostics/{part}").text for part in ("inspect", "summary", "events")]
        assert "Credential vault: revision 1, 1 credentials, 1 bindings" in told[0], told[0]
        events = http.get(f"/sandboxes/{sandbox.id}/network/events").json()["events"]
        assert [(one["kind"], one["reason"], one["revision"]) for one in events] == [("vault", "created", 1)]
        told += [json.dumps(events), http.get(f"/sandboxes/{sandbox.id}").text, held.log_path.read_text(errors="replace")]
    assert not [text for text in told if PLANTED in text]
    # Beneath it lie the server's data, too; the disks hold what sandboxes write.
    search = ["grep", "-rlaF", "--exclude=*.ext4", PLANTED, held.scratch]
    searched = subprocess.run(search, capture_output=True, text=True)
    assert (searched.returncode, searched.stdout) == (1, ""), searched
    for word in ("egress-proxy", "api-server", "jailer"):
        for pid in held.children(word):
            for part in ("environ", "cmdline"):
                assert PLANTED.encode() not in pathlib.Path(f"/proc/{pid}/{part}").read_bytes()
    for pid in (held.process.pid, *held.children("api-server"), *held.children("jailer")):
        # Buffers of a connection go when its close is seen.
        until(lambda: not in_memory(pid), lambda: f"process {pid}: {in_memory(pid)}")
    # What the sandbox itself can see.
    searched = sandbox.commands.run(
        f"grep -rlaF '{PLANTED[:-5]}''{PLANTED[-5:]}' /proc/self/environ /etc /tmp /opt 2>/dev/null; env; cat /proc/1/environ"
    )
    assert PLANTED not in str(searched), searched


def told(ran, code=0):
    """What a command wrote on either side."""
    text = ran.stdout + ran.stderr
    assert ran.returncode == code, text
    assert PLANTED not in text
    return text


@pytest.fixture
def commands(held, tmp_path_factory):
    """Runs `osb` with the planted value in a variable and in a file of the server's user."""
    directory = tmp_path_factory.mktemp("vault")
    for parent in (directory, directory.parent, directory.parent.parent):
        parent.chmod(0o755)
    (directory / "token").write_text(PLANTED + "\n")
    (directory / "vault.json").write_text(json.dumps(body()))

    def run(*words, code=0):
        return told(held.cli(*words, environment={"TOKEN": PLANTED}), code)

    return run, directory


def test_the_command_line_sets_shows_removes_and_clears(commands):
    run, directory = commands
    made = json.loads(run("sandbox", "create", "--credential-proxy", "--allow", "api.example.com:443", "-o", "json"))
    at = made["id"]
    assert "vault set" in run("vault", "show", at, code=1)
    shown = run("vault", "set", at, "api", "--host", "api.example.com", "--bearer-from-env", "TOKEN")
    assert "revision: 1" in shown and "api.example.com" in shown
    header = ("--header", "private-token", "--value-from", str(directory / "token"))
    changed = json.loads(run("vault", "set", at, "api", "--host", "api.example.com", *header, "--path", "/v1/*", "-o", "json"))
    assert (changed["revision"], changed["bindings"][0]["auth"]) == (2, {"type": "apiKey", "name": "Private-Token"})
    assert changed["bindings"][0]["match"]["paths"] == ["/v1/*"]
    assert json.loads(run("vault", "show", at, "-o", "json")) == changed
    assert "there is no variable NONE" in run("vault", "set", at, "b", "--host", "api.example.com", "--bearer-from-env", "NONE", code=2)
    assert "no terminal" in run("vault", "set", at, "b", "--host", "api.example.com", code=2)
    assert "osb policy allow" in run("vault", "set", at, "b", "--host", "other.test", "--bearer-from-env", "TOKEN", code=1)
    assert "no credential" in run("vault", "remove", at, "none", code=1)
    assert "credentials: none" in run("vault", "remove", at, "api")
    assert "no credentials" in run("vault", "clear", at)
    run("vault", "clear", at, code=1)
    plain = json.loads(run("sandbox", "create", "-o", "json"))["id"]
    assert "--credential-proxy" in run("vault", "set", plain, "a", "--host", "api.example.com", "--bearer-from-env", "TOKEN", code=1)
    run("sandbox", "kill", at, plain)


def test_a_sandbox_and_a_run_can_be_made_with_a_vault(commands):
    run, directory = commands
    made = json.loads(run("sandbox", "create", "--vault", str(directory / "vault.json"), "-o", "json"))
    assert "api.example.com" in run("vault", "show", made["id"])
    rules = json.loads(run("policy", "show", made["id"], "-o", "json"))["policy"]["egress"]
    assert [rule["target"] for rule in rules] == ["api.example.com"]
    run("sandbox", "kill", made["id"])
    assert "ran" in run("run", "--vault", str(directory / "vault.json"), "--", "sh", "-c", "env; echo ran")
    (directory / "broken.json").write_text('{"bindings": "' + PLANTED + '"}')
    assert "no vault" in run("run", "--vault", str(directory / "broken.json"), "--", "true", code=2)
    (directory / "refused.json").write_text(json.dumps({"credentials": [{"name": "t", "source": {"value": ""}}], "bindings": []}))
    run("sandbox", "create", "--vault", str(directory / "refused.json"), code=1)
