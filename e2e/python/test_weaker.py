"""What the kernel really gave, and what is weaker than a root server's sandbox."""

import os

from conftest import minimal


def test_the_receipt_lists_what_is_weaker(raw, pauses, capsys):
    made = raw.post("/sandboxes?wait=20", json=minimal())
    assert made.status_code == 202, made.text
    detail = raw.get(f"/sandboxes/{made.json()['id']}").json()
    raw.delete(f"/sandboxes/{made.json()['id']}")
    receipt = detail["receipt"]
    weaker = receipt.get("weaker", [])
    with capsys.disabled():
        who = os.environ.get("OSB_E2E_USER") or "root"
        print(f"\n  receipt for {who}: {len(weaker)} weaker")
        for line in weaker:
            print(f"    - {line}")
    if os.environ.get("OSB_E2E_USER"):
        assert weaker, receipt
    assert any("paused" in line for line in weaker) != pauses, weaker
