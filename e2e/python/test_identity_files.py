"""File calls under another identity, through the published client and by plain HTTP."""

import io
import json

import pytest
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.filesystem import (
    ContentReplaceEntry,
    DirectoryListEntry,
    MoveEntry,
    SearchEntry,
    SetPermissionEntry,
    WriteEntry,
)

UID, GID = 1234, 1235  # nobody in the image has them


@pytest.fixture
def files(sandbox):
    sandbox.commands.run("mkdir -m 777 /tmp/shared; echo secret > /tmp/secret; chmod 600 /tmp/secret")
    return sandbox.files_with_identity(UID, GID)


def test_the_published_client_does_all_calls_under_another_identity(files, sandbox):
    files.write_file("/tmp/shared/a.txt", "one two\n", mode=640)
    files.write_files([WriteEntry(path="/tmp/shared/d/b.txt", data=io.BytesIO(b"b"))])
    shown = sandbox.commands.run("stat -c '%u:%g:%a' /tmp/shared/a.txt /tmp/shared/d /tmp/shared/d/b.txt")
    lines = "".join(message.text for message in shown.logs.stdout).split()
    assert lines == ["1234:1235:640", "1234:1235:755", "1234:1235:755"]
    assert files.read_file("/tmp/shared/a.txt") == "one two\n"
    assert files.read_bytes("/tmp/shared/a.txt", range_header="bytes=4-6") == b"two"
    assert b"".join(files.read_bytes_stream("/tmp/shared/a.txt")) == b"one two\n"
    info = files.get_file_info(["/tmp/shared/a.txt"])["/tmp/shared/a.txt"]
    assert (info.owner, info.group, info.mode) == (str(UID), str(GID), 640)
    files.replace_contents([ContentReplaceEntry(path="/tmp/shared/a.txt", old_content="two", new_content="2")])
    files.set_permissions([SetPermissionEntry(path="/tmp/shared/a.txt", mode=600)])
    files.move_files([MoveEntry(src="/tmp/shared/a.txt", dest="/tmp/shared/c.txt")])
    assert files.read_file("/tmp/shared/c.txt") == "one 2\n"
    files.create_directories([WriteEntry(path="/tmp/shared/new", mode=700)])
    listed = files.list_directory(DirectoryListEntry(path="/tmp/shared", depth=1))
    assert sorted(entry.path for entry in listed) == ["/tmp/shared/c.txt", "/tmp/shared/d", "/tmp/shared/new"]
    found = files.search(SearchEntry(path="/tmp/shared", pattern="*.txt"))
    assert sorted(entry.path for entry in found) == ["/tmp/shared/c.txt", "/tmp/shared/d/b.txt"]
    files.delete_files(["/tmp/shared/c.txt"])
    files.delete_directories(["/tmp/shared/d", "/tmp/shared/new"])
    assert files.list_directory(DirectoryListEntry(path="/tmp/shared", depth=1)) == []


def test_the_kernel_refuses_what_the_identity_may_not(files, sandbox):
    for call in (
        lambda: files.read_file("/tmp/secret"),
        lambda: files.write_file("/etc/planted", "x"),
        lambda: files.delete_files(["/etc/passwd"]),
        lambda: files.set_permissions([SetPermissionEntry(path="/tmp/secret", mode=666)]),
    ):
        with pytest.raises(SandboxApiException) as caught:
            call()
        assert caught.value.status_code == 400, caught.value
    assert sandbox.files.read_file("/tmp/secret") == "secret\n"


def multipart(path):
    return {
        "metadata": ("metadata", json.dumps({"path": path}), "application/json"),
        "file": ("file", b"x", "application/octet-stream"),
    }


@pytest.mark.parametrize(
    ("method", "path", "sent"),
    [
        ("GET", "/files/info?path=/root/x", {}),
        ("DELETE", "/files?path=/etc/passwd", {}),
        ("POST", "/files/permissions", {"json": {"/etc/passwd": {"mode": 777}}}),
        ("POST", "/files/mv", {"json": [{"src": "/etc/passwd", "dest": "/tmp/passwd"}]}),
        ("GET", "/files/search?path=/root", {}),
        ("POST", "/files/replace", {"json": {"/etc/passwd": {"old": "root", "new": "toor"}}}),
        ("POST", "/files/upload", {"files": multipart("/etc/planted")}),
        ("GET", "/files/download?path=/root/x", {}),
        ("GET", "/directories/list?path=/root", {}),
        ("POST", "/directories", {"json": {"/etc/planted": {}}}),
        ("DELETE", "/directories?path=/etc", {}),
    ],
)
def test_every_call_is_refused_for_the_identity_and_for_one_that_does_not_exist(raw_sandbox, method, path, sent):
    _, execd = raw_sandbox
    execd.post("/command", json={"command": "chmod 700 /root; chmod 755 /etc"})
    refused = execd.request(method, f"/v1/filesystem/{UID}/{GID}{path}", **sent)
    assert refused.status_code == 400, refused.text
    assert "denied" in refused.json()["message"] or "not permitted" in refused.json()["message"]
    # Beyond the ids that this sandbox has.
    unmapped = execd.request(method, f"/v1/filesystem/4000000/4000000{path}", **sent)
    assert (unmapped.status_code, unmapped.json()["code"]) == (503, "FILESYSTEM_IDENTITY_UNAVAILABLE")
    assert "no such id" in unmapped.json()["message"]
