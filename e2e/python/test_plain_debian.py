"""An image that has Debian's base, python3 and node, and nothing for us: made here, so that no registry is needed."""

import shutil
import subprocess
import uuid

import pytest
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.filesystem import WriteEntry

import osb
from test_code import Interpreter, result, stdout

ROOT = osb.TARGET / "tmp" / "plain-debian.tar"
# Seconds of making the root from a Debian mirror; half a minute is usual.
MAKE_SECONDS = 900


@pytest.fixture(scope="module")
def image(server):
    """The image's name in the server's store."""
    if not ROOT.exists():
        ROOT.parent.mkdir(parents=True, exist_ok=True)
        begun = ROOT.with_name("plain-debian.part.tar")
        command = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=python3,nodejs", "bookworm", str(begun)]
        subprocess.run(command, check=True, timeout=MAKE_SECONDS)
        begun.rename(ROOT)
    # The server's user cannot look into a checkout of root's.
    archive = server.scratch / f"{uuid.uuid4().hex}.tar"
    shutil.copyfile(ROOT, archive)
    archive.chmod(0o644)
    name = f"nowhere.invalid/plain/debian:{uuid.uuid4().hex[:8]}"
    imported = server.cli("image", "import", str(archive), "--name", name)
    archive.unlink()
    assert imported.returncode == 0, imported.stderr
    return name


def test_everything_runs_in_a_plain_image(client, image):
    sandbox = client.create(image)
    assert sandbox.commands.run("grep ^ID= /etc/os-release").text.strip() == "ID=debian"
    sandbox.files.write_files([WriteEntry(path="/root/a/b.txt", data="kept\n")])
    assert sandbox.files.read_file("/root/a/b.txt") == "kept\n"

    interpreter = Interpreter(client, sandbox)
    python = interpreter.context("python")
    assert stdout(interpreter.run("import json\nx = 6\nprint(json.dumps([x]))", context=python)) == "[6]\n"
    assert result(interpreter.run("x * 7", context=python)) == "42"
    node = interpreter.context("javascript")
    assert result(interpreter.run("const { platform } = require('os'); var y = 2; platform()", context=node)) == "'linux'"
    assert result(interpreter.run("y + 1", context=node)) == "3"
    assert stdout(interpreter.run("cat /root/a/b.txt", language="bash")) == "kept\n"
    rows = interpreter.run("select 1 + 1 as two", language="sql")
    assert rows.error is None and "2" in rows.result[0].text, rows
    for absent in ("java", "go"):
        with pytest.raises(SandboxApiException, match=f'"{absent}.*no Jupyter kernel') as refusal:
            interpreter.run("1", language=absent)
        assert refusal.value.status_code == 400
