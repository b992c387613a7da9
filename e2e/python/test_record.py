"""What a sandbox fetches is recorded and served again with the network off: the same bytes, and nothing is dialled."""

import base64
import json
import os
import re
import signal

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

from conftest import minimal, plain

SECRET = "planted-93bd-index-login"
LOGIN = base64.b64encode(f"user:{SECRET}".encode()).decode()
HOSTS = ("api.test", "index.test", "open.test")
# What a program fetches: by curl over both HTTPs, by Python, and a package by pip.
FETCH = r"""
set -e
mkdir -p /tmp/got
cd /tmp/got
pip=$(echo /usr/share/python-wheels/pip-*.whl)
curl -fsS --http1.1 https://open.test/one -o one
curl -fsS --http2 'https://open.test/two?a=b' -o two
curl -fsS -H 'Authorization: Bearer decoy' https://api.test/v1/curl -o api
python3 -c "import urllib.request; open('python', 'wb').write(urllib.request.urlopen('https://open.test/three').read())"
PYTHONPATH=$pip python3 -m pip download thing --no-deps -d . --retries 0 --disable-pip-version-check -q \
    -i https://index.test/simple/
sha256sum one two api python *.whl
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return secure.made_in(tmp_path_factory, "record")


@pytest.fixture(scope="module")
def world(directory):
    made = internet.Internet(ports=(7001,))
    for name in HOSTS:
        made.zone[name] = [made.public]
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(world, directory, tmp_path_factory):
    with osb.running(tmp_path_factory, "osb-record", secure.configuration(world, directory)) as started:
        yield started


def policy():
    allowed = [NetworkRule(action="allow", target=host) for host in HOSTS]
    return NetworkPolicy(defaultAction="deny", egress=allowed)


def run(sandbox, command):
    execution = sandbox.commands.run(command)
    return (
        execution.exit_code,
        "".join(message.text for message in execution.logs.stdout),
        "".join(message.text for message in execution.logs.stderr),
    )


def digests(sandbox):
    code, out, err = run(sandbox, FETCH)
    assert code == 0, (out, err)
    found = dict(reversed(line.split()) for line in re.findall(r"[0-9a-f]{64} +\S+", out))
    assert len(found) == 5, out
    return found


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


def asked(directory):
    log = directory / "requests"
    return len(log.read_text().splitlines()) if log.exists() else 0


def events(raw, sandbox):
    return raw.get(f"/sandboxes/{sandbox.id}/network/events?limit=500").json()["events"]


@pytest.fixture(scope="module")
def recorded(world, directory, server, tmp_path_factory):
    """A recording with a package and answers to credentials, as bytes, and the digests of what was fetched."""
    import clients

    client = clients.Client("sync", server.domain, server.key)
    with secure.serving(world, directory, SECRET):
        sandbox = client.create(
            network_policy=policy(),
            credential_proxy=CredentialProxyConfig(enabled=True),
            extensions={"osb.network.record": "on"},
        )
        fill(sandbox)
        found = digests(sandbox)
        # The successor of an egress process that is killed goes on.
        os.kill(server.child("egress-proxy"), signal.SIGKILL)
        code, _, err = run(sandbox, "curl -fsS --retry 10 --retry-all-errors --retry-delay 0 https://open.test/later")
        assert code == 0, err
        with plain(server) as raw:
            state = raw.get(f"/sandboxes/{sandbox.id}/network/recording").json()
            answer = raw.get(f"/sandboxes/{sandbox.id}/network/recording/file")
    assert state["exchanges"] >= 6 and not state["full"], state
    assert answer.status_code == 200 and len(answer.content) == int(answer.headers["content-length"])
    client.close()
    return answer.content, found


def test_what_was_fetched_is_served_again_with_the_origins_gone(world, directory, recorded, raw, one_client):
    content, before = recorded
    assert SECRET.encode() not in content and b"decoy" not in content
    answer = raw.post("/recordings", content=content)
    assert answer.status_code == 201, answer.text
    recording = answer.json()
    assert recording["id"] in [one["id"] for one in raw.get("/recordings").json()["items"]]
    questions, requests = len(world.asked), asked(directory)
    sandbox = one_client.create(network_policy=policy(), extensions={"osb.network.replay": recording["id"]})
    assert digests(sandbox) == before
    assert run(sandbox, "curl -fsS https://open.test/later")[0] == 0
    # The same policy, and nobody was asked.
    assert (len(world.asked), asked(directory)) == (questions, requests)
    assert raw.delete(f"/recordings/{recording['id']}").status_code == 409
    sandbox.kill()
    assert raw.delete(f"/recordings/{recording['id']}").status_code == 204
    assert raw.get(f"/recordings/{recording['id']}").status_code == 404


def test_what_is_not_in_the_recording_is_told(world, recorded, raw, one_client):
    recording = raw.post("/recordings", content=recorded[0]).json()["id"]
    sandbox = one_client.create(extensions={"osb.network.replay": recording})
    questions = len(world.asked)
    code, out, _ = run(sandbox, "curl -sS -w '%{http_code}' https://open.test/unknown?secret=x")
    assert (code, out[-3:]) == (0, "502") and "not in the recording: GET https://open.test:443/unknown" in out, out
    assert run(sandbox, "curl -sS https://elsewhere.test/")[0] == 6, "no such name"
    assert run(sandbox, f"curl -sS -m 5 http://{world.public}:7001/")[0] != 0, "no address is reached"
    told = [event for event in events(raw, sandbox) if event["kind"] == "replay"]
    assert [(event["name"], event["path"], event["status"]) for event in told] == [("open.test", "/unknown", 502)], told
    assert told[0]["message"] == "not in the recording" and "secret=x" not in json.dumps(told)
    assert len(world.asked) == questions


def test_what_passed_unrecorded_is_told(world, directory, raw, one_client):
    world.zone["plain.test"] = [world.public]
    sandbox = one_client.create(
        network_policy=NetworkPolicy(defaultAction="deny", egress=[NetworkRule(action="allow", target="plain.test")]),
        extensions={"osb.network.record": "on"},
    )
    script = "import socket; s = socket.create_connection(('plain.test', 7001)); s.sendall(b'hello\\n'); print(s.recv(99))"
    code, out, err = run(sandbox, f'python3 -c "{script}"')
    assert code == 0 and world.public in out, (out, err)
    state = raw.get(f"/sandboxes/{sandbox.id}/network/recording").json()
    assert (state["exchanges"], [one["host"] for one in state["notRecorded"]]) == (0, ["plain.test"]), state
    told = [event for event in events(raw, sandbox) if event["kind"] == "recording"]
    assert [(event["name"], event["port"]) for event in told] == [("plain.test", 7001)], told


def test_uploads_that_are_no_recordings_are_refused_with_why(recorded, raw):
    content = recorded[0]
    for wrong, why in [
        (b"hello", "does not begin with"),
        (b"", "was cut off"),
        (content[:-3], "was cut off"),
        (content[:200] + b"x" + content[201:], "the record at byte"),
    ]:
        answer = raw.post("/recordings", content=wrong)
        assert (answer.status_code, answer.json()["code"]) == (400, "RECORDING::INVALID"), answer.text
        assert why in answer.json()["message"], answer.text


def test_mistakes_at_create_are_named(raw):

    for extensions, field in [
        ({"osb.network.record": "yes"}, "osb.network.record"),
        ({"osb.network.replay": "rec-none"}, "there is no recording"),
        ({"osb.network.record": "on", "osb.network.replay": "rec-none"}, "osb.network.replay"),
    ]:
        answer = raw.post("/sandboxes", json=minimal(extensions=extensions))
        assert answer.status_code == 400 and field in answer.json()["message"], answer.text


def test_a_sandbox_that_is_not_recorded_says_so(raw, one_client):
    sandbox = one_client.create()
    for path in ("recording", "recording/file"):
        answer = raw.get(f"/sandboxes/{sandbox.id}/network/{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "RECORDING::NOT_FOUND"), answer.text


@pytest.fixture(scope="module")
def by_command(world, directory, server):
    """A file that `osb run --record` wrote, and what the command said."""
    place = server.data / "by-command"
    place.mkdir()
    if server.user:
        os.chown(place, server.user.pw_uid, server.user.pw_gid)
    file = str(place / "web.rec")
    with secure.serving(world, directory, SECRET):
        ran = server.cli("run", "--record", file, "--allow", "open.test:443", "--", "sh", "-c", BY_COMMAND)
    assert ran.returncode == 0, ran.stderr
    assert "2 exchanges" in ran.stderr, ran.stderr
    return place, file, ran.stdout


BY_COMMAND = "for path in one two; do curl -fsS https://open.test/$path | sha256sum; done"


def test_osb_run_replays_with_a_server_and_without(directory, server, by_command):
    place, file, said = by_command
    before, kept = asked(directory), server.cli("recording", "list", "-o", "json").stdout
    for environment in ({}, {"OSB_DATA_DIR": str(place / "data")}):
        again = server.cli("run", "--replay", file, "--", "sh", "-c", BY_COMMAND, environment=environment)
        assert (again.returncode, again.stdout) == (0, said), again.stderr
        curl = ["curl", "-fsS", "https://open.test/other"]
        missing = server.cli("run", "--replay", file, "--", *curl, environment=environment)
        assert missing.returncode == 22, missing.stderr
        empty = server.cli("run", "--record", f"{file}.empty", "--", "true", environment=environment)
        assert (empty.returncode, "0 exchanges" in empty.stderr) == (0, True), empty.stderr
    assert asked(directory) == before
    assert server.cli("recording", "list", "-o", "json").stdout == kept, "nothing is left"
    # It is not begun for a file that cannot be written.
    refused = server.cli("run", "--record", f"{place}/nowhere/x", "--", "true")
    assert (refused.returncode, "nowhere" in refused.stderr) == (125, True), refused.stderr


def test_osb_recording(server, by_command):
    place, file, said = by_command
    imported = json.loads(server.cli("recording", "import", file, "-o", "json").stdout)
    assert imported["exchanges"] == 2
    shown = server.cli("recording", "show", imported["id"])
    assert "exchanges  2" in shown.stdout, shown.stdout + shown.stderr
    assert imported["id"] in server.cli("recording", "list").stdout
    made = json.loads(server.cli("sandbox", "create", "--replay", imported["id"], "-o", "json").stdout)
    got = server.cli("command", "run", made["id"], "--", BY_COMMAND)
    assert got.stdout == said, got.stdout + got.stderr
    in_use = server.cli("recording", "rm", imported["id"])
    assert (in_use.returncode, made["id"] in in_use.stdout) == (1, True), in_use.stdout
    server.cli("sandbox", "kill", made["id"])
    assert server.cli("recording", "rm", imported["id"]).returncode == 0
    recorded = json.loads(server.cli("sandbox", "create", "--record", "-o", "json").stdout)
    exported = server.cli("recording", "export", recorded["id"], f"{place}/exported.rec")
    assert "0 exchanges" in exported.stdout, exported.stdout + exported.stderr
    shown = server.cli("recording", "show", "--sandbox", recorded["id"], "-o", "json")
    assert json.loads(shown.stdout)["exchanges"] == 0
    server.cli("sandbox", "kill", recorded["id"])
