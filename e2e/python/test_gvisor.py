"""Sandboxes on gVisor: the same clients, policies and vault, against a server with that setting.

Most of it is the tests of the other modules, unchanged, with another server.
"""

import json
import pathlib
import signal
import subprocess
import time

import pytest

import osb
import secure
import test_credentials as credentials
import test_network as network
import test_volumes as volume

from conftest import minimal, plain
from test_commands import (  # noqa: F401
    test_a_timeout_ends_the_whole_group,
    test_background_has_status_and_logs,
    test_exit_codes_are_the_commands_own,
    test_stdout_and_stderr_are_told_apart,
)
from test_credentials import (  # noqa: F401
    directory,
    programs,
    test_a_planted_secret_is_nowhere_in_the_sandbox,
    test_every_program_uses_a_credential_that_it_never_sees,
    test_everything_else_is_closed_and_what_is_not_bound_is_not_opened,
    test_os_089_a_vault_outlives_pause_resume_and_the_egress_process,
    test_the_vault_can_be_emptied_and_filled_again_while_it_is_used,
)
from test_files import files, test_bytes_are_written_and_read, test_streams_go_in_and_out  # noqa: F401
from test_network import (  # noqa: F401
    policy_port,
    test_a_pause_keeps_the_policy,
    test_addresses_networks_and_wildcards,
    test_attack_26_there_is_nobody_next_to_a_sandbox,
    test_attack_27_without_a_policy_the_public_internet_and_nothing_private,
    test_attack_28_a_name_that_turns_private_is_refused,
    test_attack_29_what_could_carry_a_tunnel_is_closed,
    test_attack_31_a_tighter_policy_cuts_what_it_forbids_and_nothing_else,
    test_events_tell_what_was_refused_and_what_would_permit_it,
    test_names_are_allowed_and_rules_patched_and_deleted_by_the_published_clients,
    test_os_076_attack_31_the_egress_process_is_killed_twenty_times_and_nothing_denied_passes,
    test_os_076_policy_and_names_hold_when_the_whole_server_is_killed,
    test_os_078_a_change_is_whole_whoever_asked_for_it_leaves,
    test_os_081_ipv6_is_under_the_same_policy,
    test_ports,
    test_the_calls_of_the_policy_port,
    test_the_policy_commands,
    test_the_stream_of_events_goes_on_with_a_new_egress_process,
    test_unknown_values_are_refused_and_never_guessed,
    test_watch_tells_how_to_permit_what_was_refused,
    test_what_means_nothing_is_refused_by_its_field,
    test_what_the_operator_denies_no_policy_opens,
)
from test_vault import (  # noqa: F401
    commands,
    port,
    raw_plain,
    refused,
    test_a_sandbox_and_a_run_can_be_made_with_a_vault,
    test_a_sandbox_that_was_not_made_for_it_has_no_vault,
    test_a_vault_is_made_changed_read_and_deleted_by_the_published_clients,
    test_attack_32_no_value_is_kept_or_told_anywhere,
    test_conflicts_and_mistakes_are_told_by_status_and_change_nothing,
    test_os_088_a_policy_does_not_leave_a_binding_behind,
    test_os_088_what_a_create_demands_of_its_vault,
    test_os_089_a_vault_outlives_the_egress_process_and_the_server,
    test_os_089_a_vault_whose_holders_are_all_gone_is_lost_and_says_so,
    test_the_calls_of_the_vault_one_by_one,
    test_the_command_line_sets_shows_removes_and_clears,
    test_os_078_a_change_is_whole_whoever_asked_for_it_leaves as test_os_078_a_change_is_whole_whoever_asked_for_it_leaves_of_a_vault,
)

# An ordinary user of every machine.
NOBODY = 65534
GVISOR = '[secure_runtime]\ntype = "gvisor"\n'


@pytest.fixture(scope="module")
def world():
    """The origins of both modules in one; the vault's secure ones have port 443."""
    made = network.internet.Internet(ports=(80, 853, 7001, 7002))
    for name in ("api.test", "index.test", "open.test"):
        made.zone[name] = [made.public]
    yield made
    made.close()


@pytest.fixture(scope="module")
def origins(world, directory):
    """The secure origins, with what they were asked in the directory."""
    with secure.serving(world, directory, credentials.SECRET):
        yield


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A directory of the machine that may be mounted."""
    made = tmp_path_factory.mktemp("shared")
    (made / "there").write_text("outside\n")
    return made


@pytest.fixture(scope="module")
def server(world, origins, directory, shared, tmp_path_factory):
    egress = f'[egress]\nalways_deny = ["always.test"]\nresolvers = ["{world.resolver}"]\n'
    with osb.running(tmp_path_factory, "osb-gvisor", f'{egress}upstream_ca = ["{directory}/ca.pem"]\n{GVISOR}'
                     f'[storage]\nallowed_host_paths = ["{shared}"]\n') as started:
        yield started


@pytest.fixture
def net(server):
    return server


@pytest.fixture
def held(server):
    return server


@pytest.fixture(params=["sync"])
def client(one_client):
    return one_client


def receipt(net, sandbox):
    with plain(net) as http:
        return http.get(f"/sandboxes/{sandbox.id}").json()["receipt"]


def said(sandbox, command):
    execution = sandbox.commands.run(command)
    return "".join(message.text for message in execution.logs.stdout).strip()


def until(holds, seconds=10):
    network.until(holds, lambda: "it does not hold", seconds)


def test_the_kernel_is_gvisors_and_everybody_is_told(net, client, sandbox):
    assert "gVisor" in said(sandbox, "dmesg")
    told = receipt(net, sandbox)
    assert told["isolation"]["kind"] == "gvisor" and told["isolation"]["version"]
    assert told["seccomp"] and told["noNewPrivs"] and len(told["namespaces"]) == 7
    assert not any("NET" in name or name == "CAP_SYS_ADMIN" for name in told["capabilities"]), told
    with plain(net) as http:
        assert http.get("/capabilities").json()["runtime"]["isolation"] == told["isolation"]


def test_volumes_are_shared_kept_and_read_only(net, client, shared):
    def volumes(**fields):
        data = volume.named("gvisor-data", "/tmp/data", storage="32Mi", **fields)
        return [data, volume.host(shared, "/host", read_only=True)]

    def run(sandbox, command, **options):
        return volume.said(sandbox, command, **options).strip()

    first, second = client.create(volumes=volumes()), client.create(volumes=volumes())
    mounts = receipt(net, first)["mounts"]
    assert [(mount["mountPath"], mount["readOnly"]) for mount in mounts] == [("/tmp/data", False), ("/host", True)]
    assert run(first, "chmod 777 /tmp/data; cat /host/there") == "outside"
    assert "Read-only file system" in run(first, "touch /host/x") and not (shared / "x").exists()
    assert run(first, "echo kept > /tmp/data/mine && cat /tmp/data/mine", uid=1000, gid=1000) == "kept"
    assert run(second, "cat /tmp/data/mine; echo more >> /tmp/data/mine") == "kept"
    assert run(first, "cat /tmp/data/mine").split() == ["kept", "more"], "each sees what the other wrote"
    assert "No space left on device" in run(first, "head -c 64M /dev/zero > /tmp/data/fill")
    first.kill(), second.kill()
    third = client.create(volumes=volumes(sub_path="mine"))
    owner = "import os; print(os.stat('/tmp/data').st_uid)"
    assert run(third, f'python3 -c "{owner}"; cat /tmp/data').split() == ["1000", "kept", "more"]


def test_limits_hold(net, client):
    sandbox = client.create(resource={"memory": "256Mi", "cpu": "500m", "pids": "160", "disk": "64Mi"})
    limits = {name: limit["value"] for name, limit in receipt(net, sandbox)["limits"].items()}
    assert (limits["memory"], limits["cpu"], limits["pids"]) == (256 << 20, 500, 160)
    full = sandbox.commands.run("head -c 80M /dev/zero > /tmp/big")
    assert full.exit_code != 0 and "No space left" in full.logs.stderr[0].text
    # gVisor counts time that its program was not given; the machine's kernel says that it held it back.
    before = held_back(net, sandbox)
    said(sandbox, "python3 -c 'import time; end = time.time() + 1\nwhile time.time() < end: pass'")
    assert held_back(net, sandbox) > before


def held_back(net, sandbox):
    """In how many periods the sandbox's group had used up its share of the processor."""
    named = net.data / "sandboxes" / sandbox.id / "group"
    group = json.loads(named.read_text()) if named.exists() else sandbox.id
    (stat,) = [path for path in pathlib.Path("/sys/fs/cgroup").glob(f"**/{group}/cpu.stat") if "nr_throttled" in path.read_text()][:1]
    return int(stat.read_text().split("nr_throttled ")[1].split()[0])


def test_too_little_for_gvisor_itself_is_refused_by_name(client):
    for name, value in (("memory", "64Mi"), ("pids", "32")):
        with pytest.raises(network.SandboxApiException, match=f"resourceLimits.{name}: gVisor itself"):
            client.create(resource={name: value})


def test_memory_that_runs_out_ends_the_sandbox_and_is_told(net, client):
    """Its programs' memory is the kernel's in user space: there is no hog among them that could end alone."""
    sandbox = client.create(resource={"memory": "192Mi"})
    with pytest.raises(Exception):  # noqa: B017  the connection ends with the sandbox
        sandbox.commands.run("python3 -c 'x = bytearray(400 << 20); print(len(x))'")
    with plain(net) as http:
        until(lambda: state_of(http, sandbox.id) != "Running")
        assert http.get(f"/sandboxes/{sandbox.id}").json()["status"]["exit"]["kind"] == "oom"


def test_a_fork_bomb_ends_its_own_sandbox(net, client):
    sandbox, other = client.create(resource={"pids": "256"}), client.create()
    bomb = "import os, time\nwhile os.fork(): pass\ntime.sleep(60)"
    with pytest.raises(Exception):  # noqa: B017  the connection ends with the sandbox
        sandbox.commands.run(f'python3 -c "{bomb}"')
    with plain(net) as http:
        until(lambda: state_of(http, sandbox.id) != "Running")
        assert http.get(f"/sandboxes/{sandbox.id}").json()["status"]["exit"]["kind"] == "pids"
    assert said(other, "echo lives") == "lives"


def test_isolated_sessions_are_refused_by_name(net, sandbox):
    with plain(net) as http:
        where = http.get(f"/sandboxes/{sandbox.id}/endpoints/44772").json()
        answer = http.post(f"http://{where['endpoint']}/v1/isolated/session", headers=where["headers"], json={})
        assert answer.status_code == 503 and "solated" in answer.text, (answer.status_code, answer.text)


def test_the_exit_of_the_main_process_is_its_own(net, client):
    with plain(net) as http:
        for entrypoint, expected in (
            ("sleep 0.5; exit 9", {"kind": "exited", "code": 9}),
            ("sleep 0.5; kill -15 $$", {"kind": "signaled", "signal": 15}),
        ):
            answer = http.post("/sandboxes", json=minimal(entrypoint=["sh", "-c", entrypoint]))
            path = f"/sandboxes/{answer.json()['id']}"
            until(lambda: http.get(path).json()["status"].get("exit"))  # noqa: B023
            assert http.get(path).json()["status"]["exit"] == expected
            http.delete(path)


def test_a_deadline_ends_it_and_nothing_is_left(net):
    def left():
        return [line for line in processes() if "runsc-" in line]

    with plain(net) as http:
        before = (left(), mounts(), sorted(path.name for path in (net.data / "sandboxes").iterdir()))
        made = http.post("/sandboxes", json=minimal(timeout=60)).json()["id"]
        until(lambda: http.get(f"/sandboxes/{made}").json()["status"]["state"] == "Running", 30)
        assert len(left()) > len(before[0])
        soon = time.time() + 1
        expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(soon + 1))
        answer = http.post(f"/sandboxes/{made}/renew-expiration", json={"expiresAt": expires})
        assert answer.status_code == 200, answer.text
        until(lambda: state_of(http, made) in ("Terminated", None), 20)
        until(lambda: (left(), mounts(), sorted(path.name for path in (net.data / "sandboxes").iterdir())) == before, 20)


def test_it_lives_on_when_the_jailer_and_the_server_are_killed(net, client, sandbox):
    before = said(sandbox, "cat /proc/sys/kernel/random/boot_id; echo x > /tmp/kept")
    jailer = net.child("jailer")
    network.os.kill(jailer, signal.SIGKILL)
    network.os.kill(net.child("api-server"), signal.SIGKILL)
    until(lambda: net.child("jailer") not in (None, jailer))
    until(lambda: lives(net, sandbox), 20)
    assert said(sandbox, "cat /tmp/kept") == "x"
    assert before == said(sandbox, "cat /proc/sys/kernel/random/boot_id")


def lives(net, sandbox):
    with plain(net) as http:
        try:
            return http.get(f"/sandboxes/{sandbox.id}").json()["status"]["state"] == "Running"
        except network.httpx.HTTPError:
            return False


def state_of(http, sandbox_id):
    """None for one that is gone."""
    answer = http.get(f"/sandboxes/{sandbox_id}")
    return answer.json()["status"]["state"] if answer.status_code == 200 else None


def processes():
    return subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout.splitlines()


def mounts():
    return pathlib.Path("/proc/self/mounts").read_text()


def test_a_server_without_runsc_says_what_to_install(tmp_path):
    """With a search for programs that finds nothing: its own mounts hide the place where runsc is."""
    config = tmp_path / "config.toml"
    config.write_text(GVISOR)
    hide = "mount -t tmpfs none /usr/local/bin; mount --bind /dev/null /usr/bin/runsc; exec \"$@\""
    started = subprocess.run(
        ["unshare", "--mount", "sh", "-c", hide, "sh", osb.binary("OSB_BIN", "osb"), "server", "--port", "0", "--config", config],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "OSB_DATA_DIR": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert started.returncode != 0
    assert "apt-get install -y runsc" in started.stderr, started.stderr


def test_an_ordinary_user_is_refused_with_the_reason(net, tmp_path):
    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    config, data = tmp_path / "config.toml", tmp_path / "data"
    config.write_text(GVISOR)
    data.mkdir()
    network.os.chown(data, NOBODY, NOBODY)
    started = subprocess.run(
        [net.program, "server", "--port", "0", "--config", config],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", "OSB_DATA_DIR": str(data)},
        cwd="/",
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert started.returncode != 0
    assert "runs as root" in started.stderr, started.stderr
