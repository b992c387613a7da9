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


def test_snapshots_exist_or_are_refused_with_what_is_missing(raw, raw_sandbox):
    sandbox_id, _ = raw_sandbox
    there_are = raw.get("/capabilities").json()["features"]["snapshots"]
    taken = raw.post(f"/sandboxes/{sandbox_id}/snapshots")
    restored = raw.post("/sandboxes", json=minimal(image=..., snapshotId="none"))
    assert there_are == (not os.environ.get("OSB_E2E_USER"))
    if there_are:
        assert (taken.status_code, restored.status_code) == (202, 404)
        return
    forked = raw.post(f"/sandboxes/{sandbox_id}/fork", json={"count": 1})
    for refused in (taken, forked):
        assert (refused.status_code, refused.json()["code"]) == (501, "SNAPSHOT::NOT_IMPLEMENTED")
        assert "root" in refused.json()["message"]
    assert restored.status_code == 400 and restored.json()["message"].startswith("snapshotId")
    assert raw.get("/snapshots").json()["items"] == []
    assert raw.get("/snapshots/none").status_code == 404
