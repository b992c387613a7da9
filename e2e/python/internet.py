"""A small internet: a network namespace with origins, and a resolver on this machine's loopback.

    sandbox ──▶ egress process (this machine) ══ veth ══ origins at public and private addresses
                        │
                        └──▶ resolver on loopback

Needs root, also where the server is an ordinary user's. The public addresses are routed here while this lives.
"""

import os
import socket
import struct
import subprocess
import sys
import threading
import time

# Ports on which every address of the namespace is served.
PORTS = (80, 443, 853, 7001, 7002)

# Seconds in which the origins must listen.
READY_SECONDS = 10

# Says at which address and port it was reached, then repeats what it hears.
ORIGIN = """
import socket, sys, threading

def talk(peer):
    try:
        host, port = peer.getsockname()[:2]
        peer.sendall(f"{host} {port}\\n".encode())
        while data := peer.recv(65536):
            peer.sendall(data)
    except OSError:
        pass
    peer.close()

def serve(listener):
    while True:
        peer, _ = listener.accept()
        threading.Thread(target=talk, args=(peer,), daemon=True).start()

for port in map(int, sys.argv[1:]):
    for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        listener = socket.create_server((host, port), family=family, backlog=128)
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


class Internet:
    """Addresses by attribute; `zone` is what the resolver answers, and may be changed."""

    def __init__(self, ports=PORTS):
        self.ports = ports
        part = 1 + os.getpid() % 250
        self.name = f"osb{os.getpid()}"
        self.machine = f"10.213.{part}.1"
        self.private = f"10.213.{part}.2"
        self.private_network = f"10.213.{part}.0/24"
        self.public = f"93.184.{part}.34"
        self.other = f"93.184.{part}.35"
        # 3fff::/20 is for documentation; whoever does not know that takes it for public.
        self.public6 = f"3fff:{part:x}::2"
        self.other6 = f"3fff:{part:x}::3"
        self.private6 = f"fd13:{part:x}::2"
        host, peer = f"{self.name}h", f"{self.name}p"
        self.ip(f"netns add {self.name}")
        try:
            self.ip(f"link add {host} type veth peer name {peer} netns {self.name}")
            self.ip(f"addr add {self.machine}/24 dev {host}")
            self.ip(f"-6 addr add fd13:{part:x}::1/64 dev {host} nodad")
            self.ip(f"link set {host} up")
            inside = f"-n {self.name}"
            self.ip(f"{inside} addr add {self.private}/24 dev {peer}")
            self.ip(f"{inside} -6 addr add {self.private6}/64 dev {peer} nodad")
            for address in (self.public, self.other):
                self.ip(f"{inside} addr add {address}/32 dev lo")
            for address in (self.public6, self.other6):
                self.ip(f"{inside} -6 addr add {address}/128 dev lo nodad")
            self.ip(f"{inside} link set lo up")
            self.ip(f"{inside} link set {peer} up")
            for address in (self.public, self.other):
                self.ip(f"route add {address}/32 via {self.private}")
            for address in (self.public6, self.other6):
                self.ip(f"-6 route add {address}/128 via {self.private6}")
            self.origins = subprocess.Popen(
                ["ip", "netns", "exec", self.name, sys.executable, "-c", ORIGIN, *map(str, ports)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert self.origins.stdout.readline() == "ready\n", "the origins did not start"
            self.await_origin(self.public6)
        except BaseException:
            self.ip(f"netns del {self.name}")
            raise
        self.zone = {
            "origin.test": [self.public],
            "sub.origin.test": [self.public],
            "deep.sub.origin.test": [self.public],
            "other.test": [self.other],
            "private.test": [self.private],
            "metadata.test": ["169.254.169.254"],
            "loopback.test": ["127.0.0.1"],
            "six.test": [self.public6],
        }
        self.asked = []
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.resolver = "127.0.0.1:%d" % self.socket.getsockname()[1]
        threading.Thread(target=self.answer, daemon=True).start()

    def await_origin(self, address):
        """A new link may need a moment until its neighbours are known."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                return socket.create_connection((address, self.ports[0]), timeout=1).close()
            except OSError:
                assert time.monotonic() < deadline, f"{address} is not reached from this machine"
                time.sleep(0.05)

    @staticmethod
    def ip(words):
        subprocess.run(["ip", *words.split()], check=True, stdin=subprocess.DEVNULL)

    def answer(self):
        while True:
            try:
                question, asker = self.socket.recvfrom(4096)
            except OSError:
                return
            self.socket.sendto(self.answer_to(question), asker)

    def answer_to(self, question):
        labels, at = [], 12
        while length := question[at]:
            labels.append(question[at + 1 : at + 1 + length].decode())
            at += 1 + length
        name = ".".join(labels).lower()
        (kind,) = struct.unpack("!H", question[at + 1 : at + 3])
        self.asked.append((name, kind))
        family, length = {1: (socket.AF_INET, 4), 28: (socket.AF_INET6, 16)}.get(kind, (None, 0))
        addresses = self.zone.get(name)
        records = []
        for address in addresses or ():
            if family and (":" in address) == (family == socket.AF_INET6):
                data = socket.inet_pton(family, address)
                records.append(struct.pack("!HHHIH", 0xC00C, kind, 1, 1, length) + data)
        code = 0 if addresses is not None else 3
        head = question[:2] + struct.pack("!HHHHH", 0x8180 | code, 1, len(records), 0, 0)
        return head + question[12 : at + 5] + b"".join(records)

    def close(self):
        self.socket.close()
        self.origins.stdin.close()
        self.origins.wait(READY_SECONDS)
        # The routes over the link go with it; the namespace would take it along a moment later, when the next world wants its name.
        self.ip(f"link del {self.name}h")
        self.ip(f"netns del {self.name}")
