"""Browsers in a sandbox: they reach the pages that it may reach, and use its credentials without knowing them."""

import importlib.util
import io
import json
import pathlib
import subprocess
import tarfile

import pytest
from playwright.sync_api import Error, sync_playwright

from test_credentials import directory, make, run, server, world  # noqa: F401
from test_ingress import background, forward

CHROMIUM = "/usr/bin/chromium"
# What Playwright for Python is made of; its own browser is not.
PACKAGES = ["playwright", "greenlet"]
# Seconds that a browser or a page may take on a busy machine.
PATIENCE = 60
# Visits its arguments; says of each page what its body is, or why it was not reached.
VISIT = """
import json, sys
from playwright.sync_api import Error, sync_playwright

said = []
with sync_playwright() as playwright:
    page = playwright.chromium.launch(executable_path=sys.argv[1]).new_page()
    for url in sys.argv[2:]:
        try:
            page.goto(url)
            said.append(page.text_content("body").strip())
        except Error as error:
            said.append(error.message.split(" at ")[0])
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def packages():
    """Playwright of this environment as an archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in PACKAGES:
            archive.add(pathlib.Path(importlib.util.find_spec(name).origin).parent, name)
    return packed.getvalue()

# Bound to a credential; allowed, with a certificate that this machine does not know; not allowed. There is only a loopback
# interface, so a browser takes itself for offline and says that of names that it does not find.
PAGES = ["https://api.test/v1/page", "https://open.test/", "https://elsewhere.test/"]
SAID = ["you said [REDACTED]", "net::ERR_CERT_AUTHORITY_INVALID", "net::ERR_INTERNET_DISCONNECTED"]


def test_playwright_in_a_sandbox_reaches_what_is_allowed(packages, one_client):
    sandbox = make(one_client)
    sandbox.files.write_file("/tmp/packages.tar", packages)
    sandbox.files.write_file("/tmp/visit.py", VISIT)
    unpack = "mkdir /tmp/packages && tar -xf /tmp/packages.tar -C /tmp/packages"
    visit = f"PYTHONPATH=/tmp/packages python3 /tmp/visit.py {CHROMIUM} {' '.join(PAGES)}"
    code, said = run(sandbox, f"{unpack} && {visit}")
    assert code == 0, said
    check(json.loads(said.splitlines()[-1]))


def check(said):
    # What is masked keeps its length.
    assert [text.removeprefix("Page.goto: ").rstrip("*") for text in said] == SAID


def test_playwright_outside_drives_the_browser_of_a_sandbox(server, one_client):
    sandbox = make(one_client)
    browser = f"{CHROMIUM} --headless --no-sandbox --disable-gpu --remote-debugging-port=9222 about:blank"
    sandbox.commands.run(browser, opts=background())
    process, (port,) = forward(server, sandbox.id, ":9222")
    try:
        subprocess.run(
            f"for i in $(seq {PATIENCE * 10}); do curl -fsS -o /dev/null http://127.0.0.1:{port}/json/version && exit; "
            "sleep 0.1; done; exit 1",
            shell=True,
            check=True,
            stderr=subprocess.DEVNULL,
        )
        with sync_playwright() as playwright:
            page = playwright.chromium.connect_over_cdp(f"http://127.0.0.1:{port}").new_page()
            said = []
            for url in PAGES:
                try:
                    page.goto(url)
                    said.append(page.text_content("body").strip())
                except Error as error:
                    said.append(error.message.split(" at ")[0])
            check(said)
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0
