"""Origins that answer over TLS only to those who have the right credential, in the small internet.

    api.test    Bearer SECRET                    index.test    Basic user:SECRET
    open.test   anybody

Run as a program it is the server: `secure.py DIRECTORY SECRET PORT`; the directory has the certificate and what is served,
and gets a line for each request.
"""

import base64
import contextlib
import http.server
import json
import pathlib
import ssl
import subprocess
import sys


@contextlib.contextmanager
def serving(world, directory, secret):
    """The origins, at port 443 of every address of the world."""
    server = subprocess.Popen(
        ["ip", "netns", "exec", world.name, sys.executable, __file__, directory, secret, "443"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout.readline() == "ready\n", "the secure origins did not start"
    yield
    server.kill()
    server.wait()


def made_in(tmp_path_factory, name):
    """A directory that servers of every user can read, with an authority."""
    made = tmp_path_factory.mktemp(name)
    for parent in (made, made.parent, made.parent.parent):
        parent.chmod(0o755)
    make_authority(made)
    return made


def configuration(world, directory):
    """A server that finds these origins and believes them."""
    return f'[egress]\nresolvers = ["{world.resolver}"]\nupstream_ca = ["{directory}/ca.pem"]\n'


def make_authority(directory):
    """An authority of the internet and a certificate for its hosts; where the authority's is."""
    directory = pathlib.Path(directory)
    key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    (directory / "names").write_text("subjectAltName=DNS:api.test,DNS:index.test,DNS:open.test")
    script = f"""
        openssl req -x509 {key} -keyout ca.key -subj '/CN=Internet' -days 2 -out ca.pem \
            -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign
        openssl req {key} -keyout leaf.key -subj /CN=api.test -out leaf.csr
        openssl x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -days 2 -extfile names -out leaf.pem
    """
    subprocess.run(["sh", "-ec", script], cwd=directory, check=True, stderr=subprocess.DEVNULL)
    served = directory / "www"
    for name in ("v1", "repository.git/info", "simple/thing", "apt"):
        (served / name).mkdir(parents=True)
    (served / "repository.git/HEAD").write_text("ref: refs/heads/main\n")
    (served / "repository.git/info/refs").write_text("1" * 40 + "\trefs/heads/main\n")
    (served / "simple/thing/thing-1.0-py3-none-any.whl").write_bytes(wheel())
    (served / "apt/Packages").write_text("")
    return directory / "ca.pem"


def wheel():
    """The smallest package that pip takes."""
    import io
    import zipfile

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("thing.py", "")
        archive.writestr("thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
        archive.writestr("thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("thing-1.0.dist-info/RECORD", "")
    return packed.getvalue()


def serve(directory, secret, port):
    directory = pathlib.Path(directory)
    expected = {
        "api.test": f"Bearer {secret}",
        "index.test": "Basic " + base64.b64encode(f"user:{secret}".encode()).decode(),
    }

    class Handler(http.server.SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def __init__(self, *arguments):
            super().__init__(*arguments, directory=directory / "www")

        def log_message(self, *_):
            pass

        def do_GET(self):
            host = self.headers.get("Host", "").split(":")[0]
            shown = self.headers.get("Authorization")
            with open(directory / "requests", "a") as log:
                log.write(json.dumps([host, self.path, shown, str(self.headers)]) + "\n")
            if host in expected and shown != expected[host]:
                self.answer(401, b"no credential")
            elif self.path.startswith("/v1/") or host == "open.test":
                self.answer(200, f"you said {shown}".encode())
            else:
                super().do_GET()

        def answer(self, status, body):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_):
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "leaf.pem", directory / "leaf.key")
    server = Server(("0.0.0.0", int(port)), Handler)
    # The handshake is the thread's of each connection.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    print("ready", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(*sys.argv[1:])
