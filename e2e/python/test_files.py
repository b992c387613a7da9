"""Files and directories through the published client."""

import io
import os

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


@pytest.fixture
def files(sandbox):
    return sandbox.files


def refused(status, function, *args, **kwargs):
    with pytest.raises(SandboxApiException) as caught:
        function(*args, **kwargs)
    assert caught.value.status_code == status, caught.value
    assert caught.value.error.code
    assert caught.value.request_id
    return str(caught.value)


def test_text_is_written_and_read(files):
    files.write_file("/tmp/deep/er/a.txt", "line one\nžluť\n")
    assert files.read_file("/tmp/deep/er/a.txt") == "line one\nžluť\n"


def test_bytes_are_written_and_read(files):
    data = bytes(range(256)) * 4097
    files.write_file("/tmp/b.bin", data)
    assert files.read_bytes("/tmp/b.bin") == data
    files.write_file("/tmp/empty", b"")
    assert files.read_bytes("/tmp/empty") == b""


def test_streams_go_in_and_out(files):
    data = os.urandom(9 << 20)
    files.write_file("/tmp/s.bin", io.BytesIO(data))
    assert b"".join(files.read_bytes_stream("/tmp/s.bin", chunk_size=65536)) == data


def test_ranges(files):
    files.write_file("/tmp/r", b"0123456789")
    for header, expected in [("bytes=2-4", b"234"), ("bytes=7-", b"789"), ("bytes=-3", b"789")]:
        assert files.read_bytes("/tmp/r", range_header=header) == expected
    refused(416, files.read_bytes, "/tmp/r", range_header="bytes=100-200")


def test_line_windows(files):
    files.write_file("/tmp/l", "one\r\ntwo\nthree\nfour\n")
    assert files.read_file("/tmp/l", offset=2, limit=2) == "two\nthree"
    assert files.read_file("/tmp/l", limit=1) == "one"
    assert files.read_file("/tmp/l", offset=9) == ""


def test_many_files_at_once(files):
    entries = [WriteEntry(path=f"/tmp/many/{n}", data=str(n), mode=600) for n in range(20)]
    files.write_files(entries)
    assert files.read_file("/tmp/many/13") == "13"
    info = files.get_file_info(["/tmp/many/0", "/tmp/many/19"])
    assert {path: entry.mode for path, entry in info.items()} == {
        "/tmp/many/0": 600,
        "/tmp/many/19": 600,
    }


def test_info_tells_all(files, sandbox):
    files.write_file("/tmp/i", "12345", mode=640)
    sandbox.commands.run("ln -s /tmp/i /tmp/link")
    info = files.get_file_info(["/tmp/i", "/tmp/link", "/tmp"])
    entry = info["/tmp/i"]
    assert (entry.path, entry.entry_type, entry.size, entry.mode) == ("/tmp/i", "file", 5, 640)
    assert (entry.owner, entry.group) == ("root", "root")
    assert info["/tmp/link"].entry_type == "symlink"
    assert info["/tmp"].entry_type == "directory"
    assert "/tmp/none" in refused(404, files.get_file_info, ["/tmp/i", "/tmp/none"])


def test_search_by_name(files):
    for name in ("a.py", "b.txt", "sub/c.py", "sub/d.PY"):
        files.write_file(f"/tmp/search/{name}", "")
    found = files.search(SearchEntry(path="/tmp/search", pattern="*.py"))
    assert [entry.path for entry in found] == ["/tmp/search/a.py", "/tmp/search/sub/c.py"]
    assert files.search(SearchEntry(path="/tmp/search", pattern="*.rs")) == []
    refused(404, files.search, SearchEntry(path="/tmp/nowhere", pattern="*"))


def test_replace_changes_and_counts(files):
    files.write_file("/tmp/x", "cat and cat\r\n", mode=640)
    entry = ContentReplaceEntry(path="/tmp/x", old_content="cat", new_content="dog")
    files.replace_contents([entry])
    assert files.read_bytes("/tmp/x") == b"dog and dog\r\n"
    assert files.get_file_info(["/tmp/x"])["/tmp/x"].mode == 640
    back = ContentReplaceEntry(path="/tmp/x", old_content="dog", new_content="cat")
    none = ContentReplaceEntry(path="/tmp/x", old_content="absent", new_content="")
    counted = files.replace_contents_detailed([back])
    assert [(one.path, one.replaced_count) for one in counted] == [("/tmp/x", 2)]
    assert files.replace_contents_detailed([none])[0].replaced_count == 0
    empty = ContentReplaceEntry(path="/tmp/x", old_content="", new_content="x")
    refused(400, files.replace_contents, [empty])
    assert files.read_bytes("/tmp/x") == b"cat and cat\r\n"


def test_move_files_and_directories(files):
    files.write_file("/tmp/m/from", "moved")
    files.move_files([MoveEntry(src="/tmp/m/from", dest="/tmp/n/o/to")])
    assert files.read_file("/tmp/n/o/to") == "moved"
    refused(404, files.read_file, "/tmp/m/from")
    files.move_files([MoveEntry(src="/tmp/n", dest="/tmp/p")])
    assert files.read_file("/tmp/p/o/to") == "moved"
    refused(404, files.move_files, [MoveEntry(src="/tmp/none", dest="/tmp/q")])


def test_permissions(files):
    files.write_file("/tmp/perm", "")
    files.set_permissions([SetPermissionEntry(path="/tmp/perm", mode=600, owner="root")])
    assert files.get_file_info(["/tmp/perm"])["/tmp/perm"].mode == 600
    nobody = SetPermissionEntry(path="/tmp/perm", mode=777, owner="nosuchuser")
    with pytest.raises(SandboxApiException):
        files.set_permissions([nobody])
    assert files.get_file_info(["/tmp/perm"])["/tmp/perm"].mode == 600


def test_directories(files):
    files.create_directories([WriteEntry(path="/tmp/d/e/f", mode=700)])
    files.write_file("/tmp/d/e/g", "12")
    listed = files.list_directory(DirectoryListEntry(path="/tmp/d", depth=2))
    assert [(entry.path, entry.entry_type) for entry in listed] == [
        ("/tmp/d/e", "directory"),
        ("/tmp/d/e/f", "directory"),
        ("/tmp/d/e/g", "file"),
    ]
    flat = files.list_directory(DirectoryListEntry(path="/tmp/d"))
    assert [entry.path for entry in flat] == ["/tmp/d/e"]
    files.delete_directories(["/tmp/d"])
    refused(404, files.list_directory, DirectoryListEntry(path="/tmp/d"))


def test_delete_files(files):
    files.write_file("/tmp/gone", "x")
    files.delete_files(["/tmp/gone", "/tmp/never-was"])
    assert "/tmp/gone" in refused(404, files.read_file, "/tmp/gone")


def test_odd_names(files):
    for name in ("with space", "percent%41", "plus+", "ünï", "q?u#e"):
        path = f"/tmp/odd/{name}"
        files.write_file(path, name)
        assert files.read_file(path) == name
        assert files.get_file_info([path])[path].size == len(name.encode())


def test_reading_a_directory_is_refused_by_name(files):
    assert "/tmp" in refused(400, files.read_file, "/tmp")
