"""Ports by the published client: signed links, secure access, renewal and wake by access; tunnels by the command line."""

import hashlib
import os
import re
import socket
import subprocess
import threading
import time

import httpx
import pytest
from opensandbox.models.execd import RunCommandOpts

from conftest import minimal

# Seconds in which what a test waits for must have come.
PATIENCE = 20
# Bytes sent through a tunnel in each direction.
TUNNEL_BYTES = 1 << 30


def background():
    return RunCommandOpts(background=True)


def serve(sandbox, port=8000):
    """A page in the sandbox, once it answers."""
    sandbox.files.write_file("/tmp/www/index.html", "from inside")
    sandbox.files.write_file("/tmp/www/docs/page.html", "a page")
    sandbox.commands.run(
        f"exec /usr/bin/python3 -m http.server {port} --bind 127.0.0.1 --directory /tmp/www", opts=background()
    )
    endpoint = sandbox.get_endpoint(port)
    deadline = time.monotonic() + PATIENCE
    while httpx.get(f"http://{endpoint.endpoint}/", headers=endpoint.headers).status_code == 502:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return endpoint


def test_os_033_a_signed_endpoint_opens_its_port_without_a_token_until_it_expires(client, sandbox):
    serve(sandbox)
    signed = sandbox.get_signed_endpoint(8000, int(time.time()) + 60)
    assert re.fullmatch(r".+/links/[0-9a-f-]+/8000/[0-9a-z]+/[0-9a-f]{8}[0-9a-z]", signed.endpoint), signed.endpoint
    assert not signed.headers
    url = f"http://{signed.endpoint}"
    answer = httpx.get(f"{url}/index.html")
    assert (answer.status_code, answer.text) == (200, "from inside")
    assert "sandbox" in answer.headers["content-security-policy"]
    wrong = url[:-9] + ("0" if url[-9] != "0" else "1") + url[-8:]
    for refused in (wrong, url.replace("/8000/", "/8001/"), url.upper().replace("HTTP", "http")):
        assert httpx.get(f"{refused}/index.html").status_code in (401, 404), refused
    refused = httpx.get(f"{wrong}/index.html")
    assert (refused.status_code, refused.json()["code"]) == (401, "MISSING_OR_INVALID_SECURE_ACCESS")
    short = sandbox.get_signed_endpoint(8000, int(time.time()) + 1)
    time.sleep(2.1)
    expired = httpx.get(f"http://{short.endpoint}/index.html")
    assert (expired.status_code, "expired" in expired.json()["message"]) == (401, True)
    with pytest.raises(Exception, match="future"):
        sandbox.get_signed_endpoint(8000, 1)


def test_links_of_version_2_are_bound_to_method_and_path(client, sandbox, raw):
    serve(sandbox)
    query = {"expires": int(time.time()) + 60, "method": "GET", "path": "/docs"}
    url = "http://" + raw.get(f"/sandboxes/{sandbox.id}/endpoints/8000", params=query).json()["endpoint"]
    assert httpx.get(f"{url}/docs/page.html").text == "a page"
    assert httpx.get(f"{url}/index.html").status_code == 401
    assert httpx.post(f"{url}/docs/page.html").status_code == 401


def test_os_029_secure_access_wants_the_token(client, raw):
    sandbox = client.create(secure_access=True)
    endpoint = serve(sandbox)
    assert list(endpoint.headers) == ["OpenSandbox-Secure-Access"]
    url = f"http://{endpoint.endpoint}/index.html"
    for headers in ({}, {"OpenSandbox-Secure-Access": "wrong"}, {"OPEN-SANDBOX-API-KEY": raw.headers["open-sandbox-api-key"]}):
        refused = httpx.get(url, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (401, "MISSING_OR_INVALID_SECURE_ACCESS"), headers
        assert refused.headers["opensandbox-error-source"] == "platform"
    assert httpx.get(url, headers=endpoint.headers).text == "from inside"
    missing = httpx.get(f"http://{endpoint.endpoint}/nosuch", headers=endpoint.headers)
    assert missing.status_code == 404
    assert "opensandbox-error-source" not in missing.headers


def test_an_access_renews_a_sandbox_that_asked_for_it(raw):
    extensions = {"access.renew.extend.seconds": "3000"}
    made = raw.post("/sandboxes", json=minimal(extensions=extensions)).json()
    before = raw.get(f"/sandboxes/{made['id']}").json()["expiresAt"]
    where = raw.get(f"/sandboxes/{made['id']}/endpoints/44772").json()
    assert httpx.get(f"http://{where['endpoint']}/ping", headers=where["headers"]).status_code == 200
    deadline = time.monotonic() + PATIENCE
    while raw.get(f"/sandboxes/{made['id']}").json()["expiresAt"] == before:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    raw.delete(f"/sandboxes/{made['id']}")


def wait_for(raw, sandbox_id, reason):
    deadline = time.monotonic() + PATIENCE
    while (status := raw.get(f"/sandboxes/{sandbox_id}").json()["status"])["reason"] != reason:
        assert time.monotonic() < deadline, status
        time.sleep(0.05)


def test_an_unused_sandbox_is_paused_and_the_published_client_wakes_it(client, raw, pauses):
    extensions = {"access.idle.pause.seconds": "5"}
    if not pauses:
        refused = raw.post("/sandboxes", json=minimal(extensions=extensions))
        assert refused.status_code == 400, refused.text
        return
    sandbox = client.create(extensions=extensions)
    sandbox.commands.run("sleep 8", opts=background())
    time.sleep(6.5)
    assert raw.get(f"/sandboxes/{sandbox.id}").json()["status"]["state"] == "Running", "a command runs"
    wait_for(raw, sandbox.id, "IDLE_PAUSED")
    again = client.connect(sandbox.id)
    assert again.commands.run("echo awake").logs.stdout[0].text.strip() == "awake"
    assert raw.get(f"/sandboxes/{sandbox.id}").json()["status"]["state"] == "Running"
    wait_for(raw, sandbox.id, "IDLE_PAUSED")
    assert raw.post(f"/sandboxes/{sandbox.id}/pause").status_code == 202
    where = raw.get(f"/sandboxes/{sandbox.id}/endpoints/44772")
    assert where.status_code == 409, "paused by hand now"


def forward(server, *words):
    """`osb port-forward`, and the local ports that it names."""
    process = subprocess.Popen(
        [server.program, "port-forward", *words],
        stdout=subprocess.PIPE,
        text=True,
        env=server.environment,
        cwd="/",
        **server.identity(),
    )
    pairs = len(words) - 1
    return process, [int(re.match(r"127\.0\.0\.1:(\d+) -> ", process.stdout.readline())[1]) for _ in range(pairs)]


ECHO = """
import socket, threading
def echo(c):
    while data := c.recv(1 << 20):
        c.sendall(data)
    c.shutdown(socket.SHUT_WR)
s = socket.create_server(("127.0.0.1", 7000))
while True:
    threading.Thread(target=echo, args=(s.accept()[0],)).start()
"""


def test_port_forward_carries_a_gibibyte_whole_there_and_back(server, client, sandbox):
    if client.kind == "async":
        return  # the command line is the client here
    serve(sandbox)
    sandbox.files.write_file("/tmp/echo.py", ECHO)
    sandbox.commands.run("exec /usr/bin/python3 /tmp/echo.py", opts=background())
    process, (page, echo) = forward(server, sandbox.id, ":8000", ":7000")
    try:
        assert httpx.get(f"http://127.0.0.1:{page}/index.html").text == "from inside"
        connection = socket.create_connection(("127.0.0.1", echo))
        block = os.urandom(1 << 20)
        sent, received = hashlib.sha256(), hashlib.sha256()

        def send():
            for number in range(TUNNEL_BYTES >> 20):
                piece = number.to_bytes(8, "little") + block[8:]
                sent.update(piece)
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        size = 0
        while data := connection.recv(1 << 20):
            received.update(data)
            size += len(data)
        sender.join()
        assert (size, received.hexdigest()) == (TUNNEL_BYTES, sent.hexdigest())
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0


def test_open_prints_a_link(server, client, sandbox):
    serve(sandbox)
    made = server.cli("open", sandbox.id, "8000", "--path", "/docs/page.html", "--only", "--expires", "5m")
    assert made.returncode == 0, made.stderr
    url = made.stdout.strip()
    assert httpx.get(url).text == "a page"
    assert httpx.get(url.replace("/docs/page.html", "/index.html")).status_code == 401
    assert server.cli("open", sandbox.id, "8000", "--only").returncode == 2
    assert server.cli("port-forward", sandbox.id, "0:80").returncode == 2
