"""How a driver in Python talks with execd; the driver of a language follows in the same program.

execd sends `LENGTH\n` and LENGTH bytes of code over descriptor 3. Every answer is a line of JSON, and before it the
mark goes to both standard streams, so that execd knows what was written before the answer.
"""

import builtins
import json
import os
import sys
import _signal
import _thread


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
        line = json.dumps(fields, default=str).encode("ascii") + b"\n"
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
