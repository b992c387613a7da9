"""How a driver in Python talks with execd; the driver of a language follows in the same program.

execd sends `LENGTH\n` and LENGTH bytes of code over descriptor 3. Every answer is a line of JSON, and before it the
mark goes to both standard streams, so that execd knows what was written before the answer.
"""

import builtins
import json
import math
import os
import sys
import _signal
import _thread


# Bytes of a line: more are not read (`lines.rs`).
MAX_LINE_BYTES = 24 * 1024 * 1024
# Characters of an error's words, and of its traceback.
MAX_WORDS = 1024 * 1024


def finite(value):
    """The value with null where JSON has no number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    return value


def encoded_line(fields):
    """A line as execd takes it: strict JSON, no half of a surrogate pair, not too long."""
    try:
        text = json.dumps(fields, default=str, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(finite(fields), default=str, ensure_ascii=False, allow_nan=False)
    line = text.encode("utf-8", "replace") + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise ValueError("an answer of %d bytes is too large: at most %d are sent" % (len(line), MAX_LINE_BYTES))
    return line


class Talk:
    """The way back to execd."""

    def __init__(self, mark):
        self.pid = os.getpid()
        self.mark = mark
        self.lock = _thread.RLock()
        self.main = _thread.get_ident()
        self.running = False
        self.sending = 0
        self.interrupted = False
        # Copies, so that a cell may redirect or close its own streams.
        self.streams = [os.dup(1), os.dup(2)]
        self.texts = [sys.stdout, sys.stderr]

    def interrupt(self, _number, _frame):
        if self.sending:
            self.interrupted = True
        elif self.running:
            raise KeyboardInterrupt

    def send(self, kind, **fields):
        if os.getpid() != self.pid:
            return  # a forked child has nobody to talk with
        fields["kind"] = kind
        line = encoded_line(fields)
        is_main = _thread.get_ident() == self.main
        if is_main:
            self.sending += 1
        try:
            with self.lock:
                self.flush()
                for stream in self.streams:
                    write(stream, self.mark)
                write(3, line)
        finally:
            if is_main:
                self.sending -= 1
        if is_main and self.interrupted and not self.sending:
            self.interrupted = False
            if self.running:
                raise KeyboardInterrupt

    def fail(self, name, value, lines):
        """Says that a cell failed, in words that always fit."""
        text = "\n".join(lines)[-MAX_WORDS:]
        self.send("error", name=name, value=value[:MAX_WORDS], traceback=text.split("\n"))

    def flush(self):
        for text in {id(one): one for one in (sys.stdout, sys.stderr, *self.texts)}.values():
            try:
                text.flush()
            except Exception:  # a cell may have put anything there, or closed it
                pass


def write(descriptor, data):
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view):]


def read_exactly(source, length):
    data = source.read(length)
    if len(data) != length:
        raise SystemExit
    return data


def limit_memory(memory):
    if memory:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def cells(talk):
    """The cells that execd sends, until it goes away."""
    talk.send("ready")
    while True:
        head = commands.readline()
        if not head:
            return
        yield read_exactly(commands, int(head)).decode("utf-8", "surrogateescape")


MARK, MEMORY = commands.readline().split()
limit_memory(int(MEMORY))
os.set_inheritable(3, False)
for _text in (sys.stdout, sys.stderr):
    if hasattr(_text, "reconfigure"):
        _text.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
TALK = Talk(MARK)
_signal.signal(_signal.SIGINT, TALK.interrupt)
