"""What leaves a sandbox, and what does not: policies through the published clients, against origins of our own."""

import json
import os
import signal
import socket
import threading
import time
import uuid

import httpx
import pytest
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.sandboxes import NetworkPolicy, NetworkRule

import clients
import internet
import osb
from conftest import minimal, plain

# Says of each HOST|PORT what came of it: `open ADDRESS PORT` as the origin sees it, an errno, or `no name`.
PROBE = """
import errno, json, socket, sys, time

for where in sys.argv[1:]:
    host, port = where.rsplit("|", 1)
    start = time.monotonic()
    try:
        with socket.create_connection((host, int(port)), timeout=5) as peer:
            said = peer.recv(100).decode().split()
            result = " ".join(["open", *said]) if said else "closed"
    except socket.gaierror as error:
        result = {socket.EAI_NONAME: "no name", socket.EAI_NODATA: "no name"}.get(error.errno, str(error))
    except TimeoutError:
        result = "timeout"
    except OSError as error:
        result = errno.errorcode[error.errno]
    print(json.dumps([result, time.monotonic() - start]), flush=True)
"""

# Asks the resolver of /etc/resolv.conf for NAME and TYPE; prints the code and the number of answers.
ASK = """
import re, socket, struct, sys

name, kind = sys.argv[1], int(sys.argv[2])
server = re.search(r"nameserver (\\S+)", open("/etc/resolv.conf").read()).group(1)
labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
asker = socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM)
asker.settimeout(5)
asker.sendto(struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\\0" + struct.pack("!HH", kind, 1), (server, 53))
answer = asker.recv(4096)
print(answer[3] & 15, struct.unpack("!H", answer[6:8])[0])
"""
NXDOMAIN = 3

# Holds a connection to each HOST|PORT; writes the host of one that ends.
HOLD = """
import select, socket, sys

held = {}
for where in sys.argv[1:]:
    host, port = where.rsplit("|", 1)
    peer = socket.create_connection((host, int(port)), timeout=5)
    peer.recv(100)
    held[peer] = host
print("holding", flush=True)
while held:
    for peer in select.select(list(held), [], [])[0]:
        try:
            peer.recv(100)
            how = "closed"
        except OSError:
            how = "reset"
        print(held.pop(peer), how, flush=True)
"""

# Connects again and again until the file is gone; writes one line for each: `+` where it got the banner of the
# allowed one, `-` where it did not, `!` where anything came of the denied one.
LOOP = """
import os, socket, sys, time

allowed, denied = sys.argv[1:3]
log = open("/tmp/loop.log", "w", buffering=1)

def reached(host):
    try:
        with socket.create_connection((host, 7001), timeout=1) as peer:
            peer.settimeout(1)
            return bool(peer.recv(100))
    except OSError:
        return False

while os.path.exists("/tmp/go"):
    log.write("+%f\\n" % time.monotonic() if reached(allowed) else "-%f\\n" % time.monotonic())
    if reached(denied):
        log.write("!\\n")
"""

UNKNOWN = str(uuid.UUID(int=1))

# Seconds in which a new connection must work again after the egress process was killed.
OUTAGE_SECONDS = 2
# Seconds within which a refusal is at once, on a loaded machine.
AT_ONCE = 1


@pytest.fixture(scope="module")
def world():
    made = internet.Internet()
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(world, tmp_path_factory):
    """A server whose sandboxes ask the resolver of the world."""
    configuration = f'[egress]\nalways_deny = ["always.test"]\nresolvers = ["{world.resolver}"]\n'
    with osb.running(tmp_path_factory, "osb-net", configuration) as started:
        yield started


@pytest.fixture
def net(server):
    return server


def allow(*targets):
    return NetworkPolicy(defaultAction="deny", egress=[NetworkRule(action="allow", target=target) for target in targets])


def rule(action, target, *ports):
    return {"action": action, "target": target, **({"ports": list(ports)} if ports else {})}


def lines(sandbox, script, *arguments):
    """Runs a script of Python in the sandbox; its lines."""
    path = f"/tmp/{uuid.uuid4().hex}.py"
    sandbox.files.write_file(path, script)
    words = " ".join(f"'{argument}'" for argument in arguments)
    execution = sandbox.commands.run(f"python3 {path} {words}")
    assert execution.exit_code == 0, execution
    return [line for message in execution.logs.stdout for line in message.text.splitlines()]


def reach(sandbox, *where):
    """What came of each connection, in words."""
    results = []
    for line in lines(sandbox, PROBE, *[f"{host}|{port}" for host, port in where]):
        result, seconds = json.loads(line)
        if result != "timeout":
            assert result.startswith("open") or seconds < AT_ONCE, (result, seconds)
        results.append(result)
    return results


def test_attack_27_without_a_policy_the_public_internet_and_nothing_private(world, client):
    sandbox = client.create()
    assert reach(
        sandbox,
        (world.public, 7001),
        ("origin.test", 7001),
        (world.private, 7001),
        (world.machine, 7001),
        ("private.test", 7001),
        ("loopback.test", 7001),
        ("169.254.169.254", 80),
        ("fd00:ec2::254", 80),
        ("metadata.test", 80),
    ) == [
        f"open {world.public} 7001",
        f"open {world.public} 7001",
        "ECONNREFUSED",
        "ECONNREFUSED",
        "ECONNRESET",
        "ECONNRESET",
        "ECONNREFUSED",
        "ECONNREFUSED",
        "ECONNRESET",
    ]
    told = sandbox.get_egress_policy()
    assert (told.default_action, told.egress) == ("allow", [])


def test_names_are_allowed_and_rules_patched_and_deleted_by_the_published_clients(world, client):
    sandbox = client.create(network_policy=allow("origin.test"))
    told = sandbox.get_egress_policy()
    assert (told.default_action, [(one.action, one.target) for one in told.egress]) == ("deny", [("allow", "origin.test")])
    asked = [("origin.test", 7001), ("other.test", 7001), (world.public, 7001)]
    assert reach(sandbox, *asked) == [f"open {world.public} 7001", "no name", "ECONNREFUSED"]
    assert lines(sandbox, ASK, "other.test", 1) == [f"{NXDOMAIN} 0"]
    # At once: nothing is waited for between the two calls.
    sandbox.patch_egress_rules([NetworkRule(action="allow", target="other.test")])
    assert reach(sandbox, ("other.test", 7001)) == [f"open {world.other} 7001"]
    assert [one.target for one in sandbox.get_egress_policy().egress] == ["other.test", "origin.test"]
    sandbox.delete_egress_rules(["ORIGIN.test"])
    assert reach(sandbox, *asked) == ["no name", f"open {world.other} 7001", "ECONNREFUSED"]


def test_addresses_networks_and_wildcards(world, client):
    sandbox = client.create(network_policy=allow("*.origin.test", world.public, world.private_network))
    assert reach(
        sandbox,
        (world.public, 7001),
        (world.other, 7001),
        (world.private, 7001),
        (world.machine, 7001),
        ("sub.origin.test", 7001),
        ("deep.sub.origin.test", 7001),
        ("origin.test", 7001),
        ("private.test", 7001),
    ) == [
        f"open {world.public} 7001",
        "ECONNREFUSED",
        f"open {world.private} 7001",
        # A network opens the neighbours in it, never this machine.
        "ECONNRESET",
        f"open {world.public} 7001",
        f"open {world.public} 7001",
        "no name",
        "no name",
    ]
    # A private address behind a name takes a rule for each.
    sandbox.patch_egress_rules([NetworkRule(action="allow", target="private.test")])
    assert reach(sandbox, ("private.test", 7001)) == [f"open {world.private} 7001"]
    sandbox.delete_egress_rules([world.private_network])
    assert reach(sandbox, ("private.test", 7001)) == ["ECONNRESET"]


def test_ports(world, net, one_client):
    with plain(net) as http:
        policy = {"egress": [rule("allow", "origin.test", 7001), rule("allow", world.other, 7002)]}
        made = http.post("/sandboxes?wait=30", json=minimal(networkPolicy=policy))
        assert made.status_code == 202, made.text
        sandbox = one_client.connect(made.json()["id"])
        asked = [(host, port) for host in ("origin.test", world.other) for port in (7001, 7002)]
        assert reach(sandbox, *asked) == [f"open {world.public} 7001", "ECONNRESET", "ECONNRESET", f"open {world.other} 7002"]
        http.delete(f"/sandboxes/{sandbox.id}")


def test_os_081_ipv6_is_under_the_same_policy(world, client):
    sandbox = client.create(network_policy=allow(world.public6, "six.test"))
    assert reach(sandbox, (world.public6, 7001), (world.other6, 7001), (world.private6, 7001), ("::ffff:" + world.public, 7001)) == [
        f"open {world.public6} 7001",
        "ECONNREFUSED",
        "ECONNREFUSED",
        "ECONNREFUSED",
    ]
    # A name that has addresses of IPv6 only is reached by the address that stands for it.
    assert reach(sandbox, ("six.test", 7001)) == [f"open {world.public6} 7001"]
    sandbox.patch_egress_rules([NetworkRule(action="deny", target=world.public6), NetworkRule(action="deny", target="six.test")])
    assert reach(sandbox, (world.public6, 7001), ("six.test", 7001)) == ["ECONNREFUSED", "no name"]
    # And nothing inside turns anything on again.
    execution = sandbox.commands.run("ip -6 route add default dev lo; ip link add dummy0 type dummy; echo 0 > /proc/sys/net/ipv6/conf/all/disable_ipv6")
    assert execution.exit_code != 0
    assert reach(sandbox, (world.public6, 7001)) == ["ECONNREFUSED"]


@pytest.mark.parametrize(
    ("target", "field"),
    [("10.0.0.0/99", "egress[0].target"), ("*", "egress[0].target"), ("a..b", "egress[0].target")],
)
def test_what_means_nothing_is_refused_by_its_field(client, target, field):
    with pytest.raises(SandboxApiException) as refused:
        client.create(network_policy=allow(target))
    assert refused.value.status_code == 400 and field in str(refused.value), refused.value
    sandbox = client.create(network_policy=allow("origin.test"))
    with pytest.raises(SandboxApiException) as refused:
        sandbox.patch_egress_rules([NetworkRule(action="allow", target=target)])
    assert refused.value.status_code == 400 and field in str(refused.value), refused.value
    assert [one.target for one in sandbox.get_egress_policy().egress] == ["origin.test"]


def test_unknown_values_are_refused_and_never_guessed(net):
    with plain(net) as http:
        for policy, field in [
            ({"defaultAction": "block"}, "networkPolicy.defaultAction"),
            ({"egres": []}, "networkPolicy.egres"),
            ({"egress": [{"action": "permit", "target": "a.test"}]}, "networkPolicy.egress[0].action"),
            ({"egress": [{"action": "allow", "target": " "}]}, "networkPolicy.egress[0].target"),
            ({"egress": [rule("allow", "a.test", 0)]}, "networkPolicy.egress[0].ports"),
            ({"egress": [rule("allow", "a.test") | {"port": 1}]}, "networkPolicy.egress[0].port"),
        ]:
            answer = http.post("/sandboxes", json=minimal(networkPolicy=policy))
            assert (answer.status_code, field in answer.json()["message"]) == (400, True), answer.text


@pytest.fixture
def policy_port(net, one_client):
    """The policy API of a sandbox that may reach origin.test: its sandbox and a client with the published header."""
    sandbox = one_client.create(network_policy=allow("origin.test"))
    with plain(net) as http:
        where = http.get(f"/sandboxes/{sandbox.id}/endpoints/18080").json()
    assert list(where["headers"]) == ["OPENSANDBOX-EGRESS-AUTH"]
    with httpx.Client(base_url=f"http://{where['endpoint']}", headers={**where["headers"], "User-Agent": "raw"}, timeout=60) as made:
        yield sandbox, made


def test_the_calls_of_the_policy_port(net, policy_port):
    sandbox, port = policy_port
    assert port.get("/healthz").status_code == 200
    assert port.get("/policy").json()["enforcementMode"] == "dns+nft"
    assert httpx.get(f"{port.base_url}policy").status_code == 401
    for method in ("PUT", "POST"):
        assert port.request(method, "/policy", json={"egress": [rule("allow", "a.test")]}).json()["mode"] == "enforcing"
        refused = port.request(method, "/policy", json={"defaultAction": "block"})
        assert (refused.status_code, bool(refused.json()["code"])) == (400, True)
    assert port.patch("/policy", json=[rule("allow", "b.test")]).status_code == 200
    assert port.patch("/policy", json=[]).status_code == 400
    assert port.request("DELETE", "/policy", json=["b.test"]).status_code == 200
    assert port.request("DELETE", "/policy", json=["b.test"]).json()["reason"] == "no matching targets found"
    assert port.request("DELETE", "/policy", json=[]).status_code == 400
    assert port.put("/policy", content=b"").json()["mode"] == "deny_all"
    # The header is for this port and no other.
    elsewhere = str(port.base_url).replace("18080", "44772")
    assert httpx.get(f"{elsewhere}ping", headers=dict(port.headers)).status_code == 401
    with plain(net) as http:
        beneath = f"/sandboxes/{sandbox.id}/networkpolicy"
        assert http.get(beneath).json()["mode"] == "deny_all"
        assert http.put(beneath, json={"egress": [rule("allow", "a.test")]}).status_code == 200
        assert http.patch(beneath, json=[rule("deny", "a.test")]).status_code == 200
        assert http.request("DELETE", beneath, json=["a.test"]).status_code == 200
        assert http.get(f"/sandboxes/{UNKNOWN}/networkpolicy").status_code == 404
        for method, body in [("PUT", {"egress": [rule("permit", "a.test")]}), ("PATCH", []), ("DELETE", [])]:
            assert http.request(method, beneath, json=body).status_code == 400


def test_attack_31_a_tighter_policy_cuts_what_it_forbids_and_nothing_else(world, client):
    sandbox = client.create(network_policy=allow("origin.test", "other.test"))
    sandbox.files.write_file("/tmp/hold.py", HOLD)
    opts = RunCommandOpts(background=True)
    held = sandbox.commands.run("python3 /tmp/hold.py 'origin.test|7001' 'other.test|7001'", opts=opts)
    output = lambda: sandbox.commands.get_background_command_logs(held.id).content  # noqa: E731
    until(lambda: "holding" in output(), output)
    sandbox.patch_egress_rules([NetworkRule(action="deny", target="other.test")])
    until(lambda: "other.test reset" in output(), output)
    assert "origin.test" not in output()
    assert reach(sandbox, ("origin.test", 7001), ("other.test", 7001)) == [f"open {world.public} 7001", "no name"]


def until(holds, what, seconds=10):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


def test_attack_28_a_name_that_turns_private_is_refused(world, client):
    sandbox = client.create(network_policy=allow("swing.test"))
    world.zone["swing.test"] = [world.public]
    assert reach(sandbox, ("swing.test", 7001)) == [f"open {world.public} 7001"]
    for address in (world.private, "169.254.169.254", "127.0.0.1", world.machine):
        world.zone["swing.test"] = [address]
        # The answer before may be remembered for its second.
        until(lambda: reach(sandbox, ("swing.test", 7001)) == ["ECONNRESET"], lambda: address)


def test_attack_29_what_could_carry_a_tunnel_is_closed(world, client):
    sandbox = client.create()
    txt, https, null, anything = 16, 65, 10, 255
    answers = [lines(sandbox, ASK, "origin.test", kind) for kind in (https, null, anything)]
    assert [line.split()[1] for (line,) in answers] == ["0", "0", "0"]
    closed = client.create(network_policy=allow("origin.test"))
    assert lines(closed, ASK, "secret.denied.test", txt) == [f"{NXDOMAIN} 0"]
    assert lines(closed, ASK, "secret.origin.test", 1) == [f"{NXDOMAIN} 0"]
    asked = {name for name, _ in world.asked}
    assert not asked & {"secret.denied.test", "secret.origin.test"}, "nobody hears of a name that is denied"
    # DNS over TLS needs a rule that names its port; UDP other than questions goes nowhere.
    assert reach(sandbox, (world.public, 853), ("origin.test", 853)) == ["ECONNRESET", "ECONNRESET"]
    quic = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('%s', 443))"
    execution = sandbox.commands.run(f'python3 -c "{quic}"' % world.public)
    assert execution.exit_code != 0


# Connects to HOST|443 and says hello for the second name, by TLS or HTTP; prints whether it was passed on.
PRESENT = """
import socket, ssl, sys

kind, host, presented = sys.argv[1:4]
if kind == "tls":
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    hello = context.wrap_bio(incoming, outgoing, server_hostname=presented)
    try:
        hello.do_handshake()
    except ssl.SSLWantReadError:
        pass
    said = outgoing.read()
else:
    said = f"GET / HTTP/1.1\\r\\nHost: {presented}\\r\\n\\r\\n".encode()
try:
    with socket.create_connection((host, 443), timeout=5) as peer:
        peer.recv(100)
        peer.sendall(said)
        print("passed" if peer.recv(100) else "closed")
except ConnectionResetError:
    print("reset")
"""


@pytest.mark.parametrize("kind", ["tls", "http"])
def test_attack_30_another_name_in_the_first_bytes_is_refused(world, one_client, kind):
    sandbox = one_client.create(network_policy=allow("origin.test", "sub.origin.test"))
    said = lambda presented: lines(sandbox, PRESENT, kind, "origin.test", presented)  # noqa: E731
    assert (said("origin.test"), said("ORIGIN.test")) == (["passed"], ["passed"])
    assert (said("sub.origin.test"), said("other.test")) == (["reset"], ["reset"])
    # An address in another notation is the same address.
    number = str(int.from_bytes(socket.inet_aton(world.private)))
    assert reach(sandbox, (number, 7001), ("origin.test.", 7001)) == ["ECONNREFUSED", f"open {world.public} 7001"]


def test_attack_26_there_is_nobody_next_to_a_sandbox(one_client):
    sandbox = one_client.create()
    execution = sandbox.commands.run("cat /proc/net/dev; cat /proc/net/arp")
    shown = "".join(message.text for message in execution.logs.stdout)
    assert {line.split(":")[0].strip() for line in shown.splitlines() if ":" in line} == {"lo"}
    assert len([line for line in shown.splitlines() if line.startswith("10.")]) == 0
    script = "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"
    assert sandbox.commands.run(f'python3 -c "{script}"').exit_code != 0


def test_what_the_operator_denies_no_policy_opens(world, net, one_client):
    world.zone["always.test"] = [world.public]
    sandbox = one_client.create(network_policy=allow("always.test", "origin.test"))
    assert reach(sandbox, ("always.test", 7001), ("origin.test", 7001)) == ["no name", f"open {world.public} 7001"]
    with plain(net) as http:
        (event,) = [one for one in http.get(f"/sandboxes/{sandbox.id}/network/events").json()["events"] if one["name"] == "always.test"][:1]
    assert (event["rule"]["list"], event.get("permit")) == ("always_deny", None)


def test_events_tell_what_was_refused_and_what_would_permit_it(world, net, one_client):
    sandbox = one_client.create(network_policy=allow("origin.test", "private.test"))
    reach(sandbox, ("origin.test", 7001), ("other.test", 7001), ("private.test", 7001))
    with plain(net) as http:
        path = f"/sandboxes/{sandbox.id}/network/events"
        events = lambda: http.get(path).json()["events"]  # noqa: E731
        until(lambda: any(one["kind"] == "closed" for one in events()), events)
        told = http.get(path).json()
        assert (told["lost"], told["restarted"]) == (0, False)
        assert [one["number"] for one in told["events"]] == list(range(1, len(told["events"]) + 1))
        refused = {one["name"]: one for one in told["events"] if one.get("action") == "deny"}
        assert refused["other.test"]["permit"] == [rule("allow", "other.test")]
        assert refused["private.test"]["permit"] == [rule("allow", world.private, 7001)]
        allowed = next(one for one in told["events"] if one.get("action") == "allow")
        assert (allowed["name"], allowed["port"], allowed["dialled"]) == ("origin.test", 7001, world.public)
        # Cursors go on exactly behind.
        first = http.get(path, params={"limit": 1}).json()
        rest = http.get(path, params={"after": first["next"]}).json()
        assert first["events"] + rest["events"] == told["events"]
        assert http.get(path, params={"after": told["next"]}).json()["events"] == []
        assert http.get(path, params={"after": "nonsense"}).status_code == 422
        assert http.get(f"/sandboxes/{UNKNOWN}/network/events").status_code == 404


class Watching:
    """A stream of events, read beside the test."""

    def __init__(self, net, sandbox, after=None):
        self.messages = []
        self.thread = threading.Thread(target=self.read, args=(net, sandbox, after), daemon=True)
        self.thread.start()

    def read(self, net, sandbox, after):
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
        with plain(net) as http, http.stream("GET", f"/sandboxes/{sandbox.id}/network/events", headers=headers, timeout=None) as answer:
            message = {}
            for line in answer.iter_lines():
                if line:
                    name, _, value = line.partition(": ")
                    message[name] = value
                elif "data" in message:
                    self.messages.append((message.get("event"), message.get("id"), json.loads(message["data"])))
                    message = {}

    def kinds(self):
        return [kind for kind, _, _ in self.messages]


def test_the_stream_of_events_goes_on_with_a_new_egress_process(world, net, one_client):
    sandbox = one_client.create(network_policy=allow("origin.test"))
    watching = Watching(net, sandbox)
    reach(sandbox, ("origin.test", 7001), ("other.test", 7001))
    until(lambda: {"question", "connection", "closed"} <= set(watching.kinds()), lambda: watching.messages)
    # Another reader begins behind what this one has seen.
    _, cursor, _ = watching.messages[0]
    later = Watching(net, sandbox, cursor)
    until(lambda: len(later.messages) >= len(watching.messages) - 1, lambda: later.messages)
    assert later.messages == watching.messages[1 : 1 + len(later.messages)]
    kill_egress(net)
    until(lambda: "restarted" in watching.kinds(), lambda: watching.messages)
    until(lambda: reach(sandbox, ("origin.test", 7001)) == [f"open {world.public} 7001"], lambda: net.log())
    until(lambda: "connection" in watching.kinds()[watching.kinds().index("restarted") :], lambda: watching.messages)
    with plain(net) as http:
        told = http.get(f"/sandboxes/{sandbox.id}/network/events", params={"after": cursor}).json()
        assert told["restarted"] and told["events"], told
    sandbox.kill()
    until(lambda: watching.kinds()[-1] == "ended", lambda: watching.messages)
    watching.thread.join(10)
    assert not watching.thread.is_alive()


def kill_egress(net):
    until(lambda: net.child("egress-proxy"), lambda: net.log())
    pid = net.child("egress-proxy")
    os.kill(pid, signal.SIGKILL)
    until(lambda: net.child("egress-proxy") not in (None, pid), lambda: net.log())


def test_os_076_attack_31_the_egress_process_is_killed_twenty_times_and_nothing_denied_passes(world, net, one_client):
    sandbox = one_client.create(network_policy=allow("origin.test"))
    sandbox.files.write_file("/tmp/loop.py", LOOP)
    sandbox.files.write_file("/tmp/go", "")
    looping = sandbox.commands.run(f"python3 /tmp/loop.py origin.test {world.other}", opts=RunCommandOpts(background=True))
    log = lambda: sandbox.files.read_file("/tmp/loop.log")  # noqa: E731
    began = lambda: sandbox.commands.run("test -s /tmp/loop.log").exit_code == 0  # noqa: E731
    until(began, lambda: "the loop does not begin")
    for _ in range(20):
        before = log().count("+")
        kill_egress(net)
        killed = time.monotonic()
        until(lambda: log().count("+") > before + 1, log, OUTAGE_SECONDS)
        assert time.monotonic() - killed < OUTAGE_SECONDS
    sandbox.commands.run("rm /tmp/go")
    until(lambda: not sandbox.commands.get_command_status(looping.id).running, log)
    assert "!" not in log()
    told = [one for one in log().splitlines() if one[0] in "+-"]
    good = [float(one[1:]) for one in told if one[0] == "+"]
    assert max(later - earlier for earlier, later in zip(good, good[1:])) < OUTAGE_SECONDS
    assert reach(sandbox, ("origin.test", 7001), (world.other, 7001), ("other.test", 7001)) == [
        f"open {world.public} 7001",
        "ECONNREFUSED",
        "no name",
    ]


def test_os_078_a_change_is_whole_whoever_asked_for_it_leaves(world, net, one_client):
    sandbox = one_client.create(network_policy=allow("origin.test"))
    host, port = net.direct.split(":")
    for turn in range(200):
        action = "allow" if turn % 2 else "deny"
        body = json.dumps([rule(action, "other.test"), rule(action, world.other)])
        with socket.create_connection((host, int(port))) as caller:
            caller.sendall(
                f"PATCH /v1/sandboxes/{sandbox.id}/networkpolicy HTTP/1.1\r\nHost: {net.direct}\r\n"
                f"OPEN-SANDBOX-API-KEY: {net.key}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
            )
    with plain(net) as http:
        last = http.patch(f"/sandboxes/{sandbox.id}/networkpolicy", json=[rule("allow", "last.test")])
        assert last.status_code == 200, last.text
        rules = http.get(f"/sandboxes/{sandbox.id}/networkpolicy").json()["policy"]["egress"]
    # Both rules of each change are there, or neither; what is told is what holds.
    actions = {one["target"]: one["action"] for one in rules}
    assert set(actions) == {"last.test", "other.test", world.other, "origin.test"}
    assert actions["other.test"] == actions[world.other]
    expected = {"allow": [f"open {world.other} 7001"] * 2, "deny": ["no name", "ECONNREFUSED"]}[actions["other.test"]]
    assert reach(sandbox, ("other.test", 7001), (world.other, 7001)) == expected
    assert reach(sandbox, ("origin.test", 7001)) == [f"open {world.public} 7001"]


def test_a_pause_keeps_the_policy(world, net, one_client):
    with plain(net) as http:
        sandbox = one_client.create(network_policy=allow("origin.test"))
        if not http.get("/capabilities").json()["runtime"]["pause"]:
            # An ordinary user without a control group cannot pause; then it is refused and everything holds as it was.
            assert http.post(f"/sandboxes/{sandbox.id}/pause").status_code == 400
            assert reach(sandbox, ("origin.test", 7001)) == [f"open {world.public} 7001"]
            return
        sandbox.patch_egress_rules([NetworkRule(action="allow", target="other.test")])
        sandbox.pause()
        kill_egress(net)
        resumed = one_client.resume(sandbox.id)
        assert reach(resumed, ("origin.test", 7001), ("other.test", 7001), (world.public, 7001)) == [
            f"open {world.public} 7001",
            f"open {world.other} 7001",
            "ECONNREFUSED",
        ]


def test_os_076_policy_and_names_hold_when_the_whole_server_is_killed(world, net, one_client):
    sandbox = one_client.create(network_policy=allow("origin.test"))
    sandbox.patch_egress_rules([NetworkRule(action="allow", target="other.test")])
    find = "import socket; print(socket.gethostbyname('other.test'))"
    address = lambda which: lines(which, find)  # noqa: E731
    before = address(sandbox)
    net.kill()
    net.start()
    again = clients.Client("sync", net.domain, net.key)
    found = again.connect(sandbox.id)
    until(lambda: reach(found, ("other.test", 7001)) == [f"open {world.other} 7001"], lambda: net.log())
    assert address(found) == before, "an address that stands for a name is never another name's"
    assert reach(found, (before[0], 7001), (world.public, 7001), ("third.test", 7001)) == [
        f"open {world.other} 7001",
        "ECONNREFUSED",
        "no name",
    ]
    found.kill()
    again.close()


def test_run_without_a_server_has_the_same_network(world, net, tmp_path):
    data = net.scratch / "nobody"
    data.mkdir(exist_ok=True)
    if net.user:
        os.chown(data, net.user.pw_uid, net.user.pw_gid)
    probe = net.scratch / "probe.py"
    probe.write_text(PROBE)
    words = ["python3", "-c", PROBE, f"{world.private}|7001", f"{world.private}|7002", f"{world.public}|7001"]
    ran = net.cli("run", "--allow", f"{world.private}:7001", "--", *words, environment={"OSB_DATA_DIR": str(data)})
    assert ran.returncode == 0, ran.stderr
    assert [json.loads(line)[0] for line in ran.stdout.splitlines()] == [f"open {world.private} 7001", "ECONNRESET", "ECONNREFUSED"]


def test_the_policy_commands(world, net, one_client):
    sandbox = one_client.create(network_policy=allow("origin.test"))

    def policy(*words, **options):
        ran = net.cli("policy", *words, **options)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    assert "everything else: deny" in policy("show", sandbox.id)
    policy("allow", sandbox.id, "other.test:7001")
    shown = json.loads(policy("allow", sandbox.id, "other.test:7002", "-o", "json"))
    assert shown["policy"]["egress"] == [rule("allow", "other.test", 7001, 7002), rule("allow", "origin.test")]
    assert reach(sandbox, ("other.test", 7001), ("other.test", 7002)) == [f"open {world.other} 7001", f"open {world.other} 7002"]
    policy("deny", sandbox.id, "other.test")
    assert reach(sandbox, ("other.test", 7001)) == ["no name"]
    policy("remove", sandbox.id, "other.test")
    assert net.cli("policy", "remove", sandbox.id, "other.test").returncode == 1
    edited = policy("edit", sandbox.id, "-o", "json", environment={"EDITOR": "sed -i s/origin.test/sub.origin.test/"})
    assert json.loads(edited)["policy"]["egress"] == [rule("allow", "sub.origin.test")]
    refused = net.cli("policy", "edit", sandbox.id, environment={"EDITOR": "sed -i s/allow/permit/"})
    assert refused.returncode == 1 and "egress[0].action" in refused.stderr and "your text is kept in" in refused.stderr
    # One thing less, or more, of a sandbox that may reach everything is no word about the rest.
    open_one = one_client.create()
    policy("deny", open_one.id, "other.test")
    assert reach(open_one, ("other.test", 7001), ("origin.test", 7001)) == ["no name", f"open {world.public} 7001"]
    policy("reset", sandbox.id)
    assert reach(sandbox, ("sub.origin.test", 7001)) == ["no name"]
    sandbox.kill()


def test_watch_tells_how_to_permit_what_was_refused(world, net, one_client):
    sandbox = one_client.create(network_policy=allow("private.test"))
    reach(sandbox, ("origin.test", 7001), ("origin.test", 7001), ("private.test", 7001))
    with plain(net) as http:
        path = f"/sandboxes/{sandbox.id}/network/events"
        until(lambda: len(http.get(path).json()["events"]) >= 3, lambda: http.get(path).text)
    shown = []
    reading = threading.Thread(target=lambda: shown.append(net.cli("policy", "watch", sandbox.id, "--denied")))
    reading.start()
    # It begins with what is kept, and ends with the sandbox.
    time.sleep(1)
    sandbox.kill()
    reading.join(30)
    (ran,) = shown
    assert ran.returncode == 0, ran.stderr
    suggested = [line.split("permit it: ")[1] for line in ran.stdout.splitlines() if "permit it: " in line]
    assert suggested == [
        f"osb policy allow {sandbox.id} origin.test",
        f"osb policy allow {sandbox.id} {world.private}:7001",
    ], ran.stdout
