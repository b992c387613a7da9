"""What stands around a sandbox's programs: the daemon's word, the kernel's and the receipt's are the same."""

import json

import httpx


def run(execd, command):
    answer = execd.post("/command", json={"command": command})
    assert answer.status_code == 200, answer.text
    events = [json.loads(event) for event in answer.text.split("\n\n") if event]
    return "".join(event.get("text", "") for event in events if event["type"] == "stdout")


def test_the_report_is_what_the_kernel_says_and_what_the_receipt_says(server, raw, raw_sandbox):
    sandbox_id, execd = raw_sandbox
    published = execd.get("/v1/isolated/capabilities")
    assert published.status_code == 200, published.text
    layers = published.json()["hardening"]
    # The whole report is ours: it goes past the checker of the published contract.
    with httpx.Client(base_url=server.url, headers=dict(execd.headers)) as direct:
        answer = direct.get(f"/v1/sandboxes/{sandbox_id}/proxy/44772/v1/hardening")
    assert answer.status_code == 200, answer.text
    report = answer.json()
    assert {name: report[name] for name in layers} == layers
    assert (report["init_mode"], report["signal_shield"]) == ("pid1", True)
    assert report["seccomp"]["state"] == report["cap_drop"]["state"] == "active", report
    receipt = raw.get(f"/sandboxes/{sandbox_id}").json()["receipt"]
    assert receipt["seccomp"] is (report["seccomp_mode"] == 2) is True
    assert receipt["noNewPrivs"] is report["no_new_privs"] is True
    assert report["uid_map"][0][0] == 0, report["uid_map"]
    status = dict(line.split(":", 1) for line in run(execd, "cat /proc/self/status").splitlines())
    for name, key in [("CapBnd", "capabilities_bounding"), ("Seccomp", "seccomp_mode")]:
        assert status[name].strip() == str(report[key]), name
    # What shields the first process from the sandbox's own root is the kernel.
    assert run(execd, "kill -KILL 1; kill -STOP 1; sleep 0.1; echo still here") == "still here\n"
