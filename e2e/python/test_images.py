"""Images that are pulled, used, collected and pulled again."""

import concurrent.futures
import os
import re
import subprocess
import threading
import time

import pytest

import osb
from conftest import minimal, plain
from test_registry import layout

# Seconds in which a registry and a sandbox must be there.
PATIENCE_SECONDS = 30
# Sandboxes that are made while images are collected.
SANDBOXES = 20


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of this module's own: its images are collected. Nothing waits there, which would stand on them."""
    bounds = '[images]\nmax_size = "1Gi"\nunused_days = 30\n'
    with osb.running(tmp_path_factory, "osb-images", f"{bounds}[warm]\nmax_memory_bytes = 0\n") as started:
        yield started


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The name of an image in a registry on loopback."""
    place = tmp_path_factory.mktemp("registry")
    (place / "config.yml").write_text(
        "version: 0.1\nlog: {level: info}\nstorage: {filesystem: {rootdirectory: registry}}\nhttp: {addr: '127.0.0.1:0'}\n"
    )
    layout(place / "layout")
    with open(place / "log", "w") as log:
        registry = subprocess.Popen(["docker-registry", "serve", "config.yml"], cwd=place, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "listening on" not in (said := (place / "log").read_text()):
            assert registry.poll() is None and time.monotonic() < deadline, said
            time.sleep(0.02)
        host = said.split("listening on ")[1].split()[0].strip('",')
        host = host.replace("[::]", "127.0.0.1")
        name = f"{host}/tools:1"
        copy = ["skopeo", "copy", "--quiet", "--dest-tls-verify=false", "oci:layout:1", f"docker://{name}"]
        subprocess.run(copy, cwd=place, check=True)
        yield name
    finally:
        registry.kill()
        registry.wait()


def said(server, sandbox, word):
    """What busybox says inside."""
    told = server.cli("command", "run", sandbox, "--", "/bin/busybox", "echo", word)
    assert told.returncode == 0, told.stderr
    return told.stdout.strip()


def prune(server, **asked):
    with plain(server) as http:
        answer = http.post("/images/prune", json=asked)
        assert answer.status_code == 200, answer.text
        return answer.json()


def forget(server):
    """Makes all layers look as if nobody had asked for them for an hour."""
    long_ago = time.time() - 3600
    for record in (server.data / "images" / "layers").glob("*.json"):
        os.utime(record, (long_ago, long_ago))


def create(server, image):
    """A sandbox of busybox that answers; its id."""
    with plain(server) as http:
        answer = http.post("/sandboxes", json=minimal(image={"uri": image}, entrypoint=["/bin/busybox", "sleep", "1000"]))
        assert answer.status_code == 202, answer.text
        made = answer.json()["id"]
        # Answered when it is there, or with why it is not.
        there = http.get(f"/sandboxes/{made}/endpoints/44772")
        assert there.status_code == 200, there.text
        return made


def delete(server, *sandboxes):
    """Returns when nothing is left of them."""
    with plain(server) as http:
        for one in sandboxes:
            assert http.delete(f"/sandboxes/{one}").status_code == 204
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(http.get(f"/sandboxes/{one}").status_code == 200 for one in sandboxes):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_an_image_on_which_one_waits_stays(image, tmp_path_factory):
    with osb.running(tmp_path_factory, "osb-images-waiting") as server:
        delete(server, create(server, image))
        with plain(server) as http:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not re.search(r'state="ready"} [1-9]', told := http.get(f"http://{server.domain}/metrics").text):
                assert time.monotonic() < deadline, told
                time.sleep(0.05)
        forget(server)
        assert prune(server, maxBytes=0) == {"images": [], "layers": [], "layersKept": 0, "bytes": 0}
        assert said(server, create(server, image), "out of what waited") == "out of what waited"


def test_collection_while_sandboxes_are_made_takes_nothing_in_use(server, image):
    over = threading.Event()
    rounds = 0

    def collect():
        nonlocal rounds
        while not over.is_set():
            prune(server, maxBytes=0, unusedForSeconds=0)
            rounds += 1

    collector = threading.Thread(target=collect)
    collector.start()
    try:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda _: create(server, image), range(SANDBOXES)))
    finally:
        over.set()
        collector.join()
    assert rounds > 0
    # Long after anybody asked for the image, it is the sandboxes alone that keep it.
    forget(server)
    assert prune(server, maxBytes=0) == {"images": [], "layers": [], "layersKept": 0, "bytes": 0}
    assert [said(server, one, f"in {one}") for one in made] == [f"in {one}" for one in made]
    delete(server, *made)
    gone = prune(server, maxBytes=0)
    assert len(gone["images"]) == 1 and len(gone["layers"]) == 1 and gone["bytes"] > 0
    assert said(server, create(server, image), "again") == "again"


@pytest.mark.parametrize(
    ("body", "field"),
    [({"maxBytes": -1}, "maxBytes"), ({"unusedForSeconds": "1d"}, "unusedForSeconds"), ({"days": 3}, "days")],
)
def test_a_prune_that_means_nothing_is_refused_by_its_field(server, body, field):
    with plain(server) as http:
        answer = http.post("/images/prune", json=body)
    assert answer.status_code in (400, 422) and field in answer.json()["message"], answer.text


def test_the_command_tells_what_it_took(server):
    told = server.cli("image", "prune", "--unused-for", "30d", "--max-size", "1Ti")
    assert (told.returncode, "free again" in told.stdout) == (0, True), told
    wrong = server.cli("image", "prune", "--max-size", "much")
    assert wrong.returncode == 2 and "`much` is no size" in wrong.stderr, wrong.stderr


def test_bounds_of_the_configuration_are_checked(server):
    config = server.scratch / "wrong.toml"
    for text, told in (('max_size = "much"', "images.max_size"), ("unused_days = 0", "images.unused_days")):
        config.write_text(f"[images]\n{text}\n")
        config.chmod(0o644)
        refused = server.cli("server", "config", "--config", str(config))
        assert refused.returncode != 0 and told in refused.stderr, refused.stderr
