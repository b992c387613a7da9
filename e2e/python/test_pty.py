"""Terminals through the server's proxy, by a WebSocket client of another make."""

import json
import struct

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

# Seconds in which something must come on a loaded machine.
PATIENCE = 30


class Terminal:
    """One attached client: what it has seen, by offset."""

    def __init__(self, execd, session, **query):
        words = "&".join(f"{name}={value}" for name, value in query.items())
        base = str(execd.base_url).replace("http://", "ws://").rstrip("/")
        headers = {
            name: value
            for name, value in execd.headers.items()
            if name.lower().startswith(("x-", "open-sandbox"))
        }
        self.connecting = connect(
            f"{base}/pty/{session}/ws?{words}",
            additional_headers=headers,
            open_timeout=PATIENCE,
            close_timeout=PATIENCE,
            proxy=None,
        )
        self.out, self.err, self.replays, self.texts = b"", b"", [], []

    def __enter__(self):
        self.socket = self.connecting.__enter__()
        return self

    def __exit__(self, *why):
        self.connecting.__exit__(*why)

    def step(self):
        message = self.socket.recv(timeout=PATIENCE)
        if isinstance(message, str):
            self.texts.append(json.loads(message))
        elif message[0] == 1:
            self.out += message[1:]
        elif message[0] == 2:
            self.err += message[1:]
        else:
            assert message[0] == 3
            self.replays.append(struct.unpack(">q", message[1:9])[0])
            self.out += message[9:]

    def until(self, is_done):
        while not is_done():
            self.step()
        return self

    def until_close(self):
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                self.step()
        return closed.value.rcvd

    def type(self, text):
        self.socket.send(b"\0" + text.encode())

    def say(self, **frame):
        self.socket.send(json.dumps(frame))


@pytest.fixture
def execd(raw_sandbox):
    return raw_sandbox[1]


def create(execd, **body):
    answer = execd.post("/pty", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()["session_id"]


def test_os_066_a_megabyte_is_neither_lost_nor_doubled(execd):
    expected = "".join(f"{number}\r\n" for number in range(1, 150_001)).encode()
    session = create(execd, command="seq 1 150000; read line")
    with Terminal(execd, session) as terminal:
        terminal.until(lambda: len(terminal.out) >= len(expected))
        assert terminal.out == expected
    status = execd.get(f"/pty/{session}").json()
    assert (status["running"], status["output_offset"]) == (True, len(expected))
    oldest = len(expected) - 2**20
    for since in (0, oldest, len(expected) - 5):
        start = max(since, oldest)
        with Terminal(execd, session, since=since, takeover=1) as terminal:
            terminal.until(lambda: len(terminal.out) >= len(expected) - start)
            assert (terminal.replays, terminal.out) == ([start], expected[start:])


def test_a_shell_types_resizes_takes_signals_and_exits(execd):
    session = create(execd, cwd="/usr/share")
    with Terminal(execd, session, cols=91, rows=17) as terminal:
        terminal.type("stty size; pwd; tty\n")
        terminal.until(lambda: b"/dev/pts/" in terminal.out)
        assert b"17 91\r\n/usr/share\r\n" in terminal.out
        terminal.say(type="resize", cols=120, rows=40)
        terminal.say(type="stdin", data="stty size\n")
        terminal.until(lambda: b"40 120\r\n" in terminal.out)
        terminal.type("sh -c 'echo wai\"\"ting; exec sleep 1000'\n")
        terminal.until(lambda: b"waiting\r\n" in terminal.out)
        terminal.say(type="signal", signal="SIGINT")
        terminal.until(lambda: terminal.out.rsplit(b"waiting\r\n", 1)[1].endswith((b"# ", b"$ ")))
        terminal.type("exit 7\n")
        close = terminal.until_close()
        assert (close.code, close.reason) == (1000, "process exited")
        assert terminal.texts[-1] == {"type": "exit", "exit_code": 7}


def test_pipes_keep_errors_apart(execd):
    session = create(execd, command="cat; echo err >&2; exit 3")
    with Terminal(execd, session, pty=0) as terminal:
        terminal.type("through")
        terminal.say(type="eof")
        terminal.until_close()
        assert (terminal.out, terminal.err) == (b"through", b"err\n")
        assert terminal.texts[0]["mode"] == "pipe"


def test_takeover_viewers_and_conflict(execd):
    session = create(execd)
    with Terminal(execd, session) as first, Terminal(execd, session, mode="viewer") as viewer:
        with pytest.raises(InvalidStatus) as refused:
            Terminal(execd, session).__enter__()
        assert refused.value.response.status_code == 409
        first.type("here=1\n")
        with Terminal(execd, session, takeover=1) as second:
            assert first.until_close().code == 4001
            second.type("echo still $here\n")
            for terminal in (second, viewer):
                terminal.until(lambda: b"still 1\r\n" in terminal.out)


def test_ex_026_deleted_sessions_tell_their_clients_and_are_gone(execd):
    session = create(execd, command="setsid sleep 4242 & until pgrep -f 'sleep 424[2]'; do sleep 0.01; done; echo u''p; sleep 4242")
    with Terminal(execd, session) as terminal:
        terminal.until(lambda: b"up\r\n" in terminal.out)
        assert execd.delete(f"/pty/{session}").status_code == 200
        assert terminal.until_close().code == 1001
    left = execd.post("/command", json={"command": "pgrep -f 'sleep 424[2]'"}).text
    assert '"stdout"' not in left, left
    assert execd.get(f"/pty/{session}").status_code == 404
    assert execd.delete(f"/pty/{session}").status_code == 404


def test_what_cannot_be_is_refused(execd):
    assert execd.post("/pty", content=b"{").status_code == 400
    assert execd.post("/pty", json={"cwd": "/proc/none"}).status_code == 400
    session = create(execd)
    with pytest.raises(InvalidStatus) as refused:
        Terminal(execd, session, since="x").__enter__()
    assert refused.value.response.status_code == 400
    assert execd.get(f"/pty/{session}/ws").status_code == 426
    with pytest.raises(InvalidStatus) as refused:
        Terminal(execd, "none").__enter__()
    assert refused.value.response.status_code == 404
