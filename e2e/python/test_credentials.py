"""What a vault does: programs of a sandbox use credentials that they never see, with nothing set for any of them.

The worked example of docs/vault.md: a package index and a model API are allowed, everything else is closed.
"""

import base64
import json
import os
import pathlib
import shutil
import signal
import subprocess

import pytest
from opensandbox.models.sandboxes import (
    Credential,
    CredentialAuth,
    CredentialBinding,
    CredentialMatch,
    CredentialProxyConfig,
    NetworkPolicy,
    NetworkRule,
)

import internet
import osb
import secure

SECRET = "planted-71ac-model-key"
LOGIN = base64.b64encode(f"user:{SECRET}".encode()).decode()
# What only a credential opens, by these programs.
PROGRAMS = ["curl", "git", "apt", "python", "requests", "pip", "node", "java", "go", "chromium"]
HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return secure.made_in(tmp_path_factory, "secure")


@pytest.fixture(scope="module")
def world(directory):
    made = internet.Internet(ports=(7001,))
    for name in ("api.test", "index.test", "open.test"):
        made.zone[name] = [made.public]
    with secure.serving(made, directory, SECRET):
        yield made
    made.close()


@pytest.fixture(scope="module")
def server(world, directory, tmp_path_factory):
    with osb.running(tmp_path_factory, "osb-credentials", secure.configuration(world, directory)) as started:
        yield started


@pytest.fixture
def net(server):
    return server


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The programs that must be built, as a directory to put into a sandbox."""
    made = tmp_path_factory.mktemp("fetch")
    shutil.copy(HERE / "fetch/fetch.sh", made)
    subprocess.run(["javac", "-d", made, HERE / "fetch/Fetch.java"], check=True)
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": ""}
    subprocess.run(["go", "build", "-o", made / "fetch", HERE / "fetch/fetch.go"], check=True, env=environment)
    return made


def requests(directory, since=0):
    """What the origins were asked: host, path, Authorization, all headers."""
    log = directory / "requests"
    return [json.loads(line) for line in log.read_text().splitlines()][since:] if log.exists() else []


def make(client):
    allowed = [NetworkRule(action="allow", target=host) for host in ("api.test", "index.test", "open.test")]
    sandbox = client.create(
        network_policy=NetworkPolicy(defaultAction="deny", egress=allowed),
        credential_proxy=CredentialProxyConfig(enabled=True),
    )
    fill(sandbox)
    return sandbox


def fill(sandbox):
    def binding(name, host, **auth):
        return CredentialBinding(name=name, match=CredentialMatch(hosts=[host]), auth=CredentialAuth(**auth))

    sandbox.credential_vault.create(
        credentials=[
            Credential(name="model", source={"type": "inline", "value": SECRET}),
            Credential(name="index", source={"type": "inline", "value": LOGIN}),
        ],
        bindings=[
            binding("model", "api.test", type="bearer", credential="model"),
            binding("index", "index.test", type="basic", credential="index"),
        ],
    )


def run(sandbox, command):
    execution = sandbox.commands.run(command)
    text = "".join(message.text for message in execution.logs.stdout + execution.logs.stderr)
    return execution.exit_code, text


def test_every_program_uses_a_credential_that_it_never_sees(directory, programs, one_client):
    sandbox = make(one_client)
    for path in programs.iterdir():
        sandbox.files.write_file(f"/tmp/fetch/{path.name}", path.read_bytes(), mode=755)
    before = len(requests(directory))
    execution = sandbox.commands.run("sh /tmp/fetch/fetch.sh")
    said = dict(line.split() for message in execution.logs.stdout for line in message.text.splitlines())
    failed = {name: run(sandbox, f"cat /tmp/said/{name}") for name in PROGRAMS if said.get(name) != "yes"}
    assert not failed, failed
    asked = requests(directory, before)
    expected = {"api.test": f"Bearer {SECRET}", "index.test": f"Basic {LOGIN}"}
    assert {host for host, *_ in asked} == set(expected)
    assert all(shown == expected[host] for host, _, shown, _ in asked), asked
    assert not any("decoy" in headers for *_, headers in asked)
    # The origin told the credential back, and it did not arrive.
    assert "you said [REDACTED]" in run(sandbox, "cat /tmp/said/curl")[1]


def test_a_planted_secret_is_nowhere_in_the_sandbox(net, client):
    sandbox = make(client)
    assert run(sandbox, "curl -fsS https://api.test/v1/x")[0] == 0
    search = (
        f"env | grep -c {SECRET[:9]}; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '{SECRET}';"
        f" grep -rIl '{SECRET}' /etc /opt /tmp /run /root /var 2>/dev/null; true"
    )
    _, found = run(sandbox, search)
    # The search itself is a command with the text in it: what else has it?
    lines = [line for line in found.splitlines() if line.strip()]
    assert lines[0] == "0" and not any(line.startswith("/") for line in lines), found
    assert SECRET not in net.log_path.read_text()
    for path in net.data.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 64 << 20 and "layers" not in str(path):
            assert SECRET.encode() not in path.read_bytes(), path


def test_everything_else_is_closed_and_what_is_not_bound_is_not_opened(directory, one_client):
    sandbox = make(one_client)
    code, _ = run(sandbox, "curl -fsS -m 5 https://elsewhere.test/")
    assert code == 6, "no such name"
    # Its own certificate is seen: the sandbox does not know who signed it.
    code, _ = run(sandbox, "curl -fsS https://open.test/")
    assert code == 60, "the certificate is not of the sandbox's authority"
    code, said = run(sandbox, "curl -fsSk https://open.test/")
    assert (code, said.strip()) == (0, "you said None")


def test_the_vault_can_be_emptied_and_filled_again_while_it_is_used(directory, one_client):
    sandbox = make(one_client)
    assert run(sandbox, "curl -fsS https://api.test/v1/x")[0] == 0
    sandbox.credential_vault.delete()
    before = len(requests(directory))
    assert run(sandbox, "curl -fsSk -o /dev/null -w '%{http_code}' https://api.test/v1/x")[1].strip().endswith("401")
    assert [shown for *_, shown, _ in requests(directory, before)] == [None]
    fill(sandbox)
    assert run(sandbox, "curl -fsS https://api.test/v1/x")[0] == 0
    kinds = [event["kind"] for event in events(sandbox)]
    assert kinds.count("vault") == 3 and "request" in kinds, kinds


def events(sandbox):
    import httpx

    endpoint = sandbox.connection_config
    answer = httpx.get(
        f"http://{endpoint.domain}/v1/sandboxes/{sandbox.id}/network/events?limit=500",
        headers={"OPEN-SANDBOX-API-KEY": endpoint.api_key},
    )
    assert SECRET not in answer.text
    return answer.json()["events"]


def test_os_089_a_vault_outlives_pause_resume_and_the_egress_process(net, one_client):
    sandbox = make(one_client)
    assert run(sandbox, "curl -fsS https://api.test/v1/x")[0] == 0
    if not net.user:
        sandbox.pause()
        sandbox = one_client.resume(sandbox.id)
        assert run(sandbox, "curl -fsS https://api.test/v1/x")[0] == 0
    os.kill(net.child("egress-proxy"), signal.SIGKILL)
    code, said = run(sandbox, "curl -fsS --retry 10 --retry-all-errors --retry-delay 0 https://api.test/v1/x")
    assert (code, "[REDACTED]" in said) == (0, True), said
