"""Names in the first bytes of connections, from sandboxes on gVisor: in the world of the tests of networks, whose origin
has port 443 itself."""

import pytest

import osb
from test_gvisor import GVISOR
from test_network import test_attack_30_another_name_in_the_first_bytes_is_refused, world  # noqa: F401


@pytest.fixture(scope="module")
def server(world, tmp_path_factory):  # noqa: F811
    egress = f'[egress]\nresolvers = ["{world.resolver}"]\n'
    with osb.running(tmp_path_factory, "osb-gvisor-names", f"{egress}{GVISOR}") as started:
        yield started
