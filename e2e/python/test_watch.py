"""`osb file watch` against a real sandbox."""

import json
import queue
import signal
import subprocess
import threading

PATIENCE_SECONDS = 30


def test_the_command_line_tells_what_changes_in_a_sandbox(server, sandbox):
    sandbox.commands.run("mkdir -p /tmp/watched/below")
    watching = subprocess.Popen(
        [server.program, "file", "watch", sandbox.id, "/tmp/watched", "--recursive", "-o", "json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=server.environment,
        cwd="/",
        **server.identity(),
    )
    lines = queue.Queue()
    reader = threading.Thread(target=lambda: [lines.put(json.loads(line)) for line in watching.stdout])
    reader.start()
    try:
        first = lines.get(timeout=PATIENCE_SECONDS)
        assert (first["type"], first["path"]) == ("watching", "/tmp/watched")
        sandbox.files.write_file("/tmp/watched/below/new", "text")
        sandbox.commands.run("mv /tmp/watched/below /tmp/watched/moved")
        seen = []
        # An upload arrives by a move, too.
        while not seen or (seen[-1]["type"], seen[-1]["path"]) != ("moved", "/tmp/watched/moved"):
            seen.append(lines.get(timeout=PATIENCE_SECONDS))
        assert "/tmp/watched/below/new" in [event["path"] for event in seen]
        assert seen[-1]["from"] == "/tmp/watched/below"
        watching.send_signal(signal.SIGINT)
        assert watching.wait(PATIENCE_SECONDS) == 130
    finally:
        watching.kill()
        watching.wait(PATIENCE_SECONDS)
        reader.join(PATIENCE_SECONDS)
