"""Starts a server of its own, with the contract recorder in front of it."""

import contextlib
import json
import os
import pathlib
import pwd
import shutil
import subprocess
import time

import httpx

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))

# Seconds in which a server must be ready; the target is 50 ms, a loaded machine is slower.
READY_SECONDS = 20
# Seconds in which a stopped server must be gone.
STOP_SECONDS = 20


def binary(variable, name):
    """The built program: from the environment, else from the target directory."""
    chosen = os.environ.get(variable)
    if chosen:
        return pathlib.Path(chosen)
    for candidate in sorted(TARGET.glob(f"*/release/{name}")) + [TARGET / "release" / name]:
        if candidate.exists():
            return candidate
    raise RuntimeError(f"{name} is not built: cargo build --release -p osb -p e2e")


@contextlib.contextmanager
def running(tmp_path_factory, name, configuration=None):
    """A server for the user and the report of this run, with a configuration file if one is given."""
    scratch = tmp_path_factory.mktemp(name)
    # pytest keeps its directories to their owner; the server of an ordinary user lives below.
    for parent in (scratch.parent, scratch.parent.parent):
        parent.chmod(0o755)
    environment = {}
    if configuration:
        config = scratch / "config.toml"
        config.write_text(configuration)
        config.chmod(0o644)
        environment["SANDBOX_CONFIG_PATH"] = str(config)
    report = os.environ.get("OSB_E2E_REPORT")
    started = Server(
        scratch,
        user=os.environ.get("OSB_E2E_USER") or None,
        report=pathlib.Path(report) if report else None,
        environment=environment,
    )
    yield started
    started.clear()
    started.stop()


class Server:
    """One `osb server` with its own data directory and, if a report is named, a recorder."""

    def __init__(self, scratch, user=None, report=None, environment=None):
        self.scratch = pathlib.Path(scratch)
        self.data = self.scratch / "data"
        self.user = pwd.getpwnam(user) if user else None
        self.report = report
        self.log_path = self.scratch / "server.log"
        self.scratch.chmod(0o755)
        self.data.mkdir()
        # The user of the second run cannot look into a checkout of root's.
        self.program = self.scratch / "osb"
        shutil.copy2(binary("OSB_BIN", "osb"), self.program)
        self.program.chmod(0o755)
        self.environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": self.user.pw_dir if self.user else "/root",
            "OSB_DATA_DIR": str(self.data),
            **(environment or {}),
        }
        if self.user:
            os.chown(self.data, self.user.pw_uid, self.user.pw_gid)
        self.recorder = None
        self.process = None
        self.start()

    def identity(self):
        if not self.user:
            return {}
        return {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}

    def start(self):
        log = open(self.log_path, "ab")
        ready = self.data / "server.json"
        ready.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [self.program, "server", "--host", "127.0.0.1", "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=self.environment,
            cwd="/",
            start_new_session=True,
            **self.identity(),
        )
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                self.facts = json.loads(ready.read_text())
                break
            except (FileNotFoundError, json.JSONDecodeError):
                pass
            if self.process.poll() is not None:
                raise RuntimeError(f"server ended with {self.process.returncode}:\n{self.log()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"server not ready after {READY_SECONDS} s:\n{self.log()}")
            time.sleep(0.01)
        self.url = self.facts["url"]
        self.direct = self.url.split("://")[1].rstrip("/")
        self.key = (self.data / "api-key").read_text().strip()
        self.domain = self.direct
        if self.report:
            self.recorder = subprocess.Popen(
                [
                    binary("OSB_RECORDER", "recorder"),
                    "--upstream", self.direct,
                    "--report", str(self.report),
                    "--specs", str(ROOT / "specs"),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self.domain = self.recorder.stdout.readline().strip()
            if not self.domain:
                raise RuntimeError("the recorder did not start")

    def log(self):
        return self.log_path.read_text(errors="replace")[-6000:]

    def children(self, word):
        """The server's present children with this word on their command line."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent == self.process.pid and word.encode() in words:
                found.append(int(entry.name))
        return found

    def child(self, word):
        """The one of them; none while there is none."""
        return next(iter(self.children(word)), None)

    def clear(self):
        """Ends every sandbox: they would outlive the server."""
        headers = {"OPEN-SANDBOX-API-KEY": self.key}
        with httpx.Client(base_url=f"http://{self.direct}/v1", headers=headers, timeout=60) as http:
            # More than a page cannot be left by tests that clean up after themselves.
            for item in http.get("/sandboxes", params={"pageSize": 200}).json()["items"]:
                http.delete(f"/sandboxes/{item['id']}", params={"grace": 0})

    def stop(self):
        if self.recorder:
            self.recorder.stdin.close()
            self.recorder.wait(STOP_SECONDS)
        self.process.terminate()
        code = self.process.wait(STOP_SECONDS)
        if code != 0:
            raise RuntimeError(f"server ended with {code}:\n{self.log()}")

    def kill(self):
        """Kills the supervisor; the processes that it started end with it."""
        if self.recorder:
            self.recorder.stdin.close()
            self.recorder.wait(STOP_SECONDS)
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def cli(self, *arguments, environment=None):
        """Runs `osb` as the server's user, against this server and no other."""
        return subprocess.run(
            [self.program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            env={**self.environment, **(environment or {})},
            cwd="/",
            **self.identity(),
        )
