"""Three pairs of a real agent keep their ports and paths over a switch, a controller and a lease that end.

```text
 z, then m, then a ─ applied ─▶ ports in that order ─ the switch is started anew: a, m, z ─▶ the same ports
```
"""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from lab.host import BINARY
from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands
from lab.ovs import COMMANDS
from lab.three_pairs import ThreePairs

pytestmark = pytest.mark.abreast
ALL = ("a", "m", "z")


@pytest.fixture(name="network")
def _network(tmp_path: Path) -> Iterator[ThreePairs]:
    need_commands(*COMMANDS, "ovs-ofctl", "ethtool")
    need("no network namespaces: run as root, or `unshare --user --map-root-user`", can_make_namespaces())
    need("no release build: cargo build --release", BINARY.exists())
    with ExitStack() as cleanup:
        yield ThreePairs(tmp_path, cleanup)


def test_pairs_keep_their_paths(network: ThreePairs) -> None:
    """Whatever is started anew: the same ports, and each its own path."""
    names: tuple[str, ...] = ()
    for name in "zma":
        names = (name, *names)
        network.apply(*names)
        network.until(f"the path of {name}", partial(network.are_promised, *names))
    ports = network.ports(*ALL)
    assert ports["z"] < ports["m"] < ports["a"], "in the order in which they came"
    assert network.granted() == ports
    served = network.host.get("/metrics")
    for name in ALL:
        assert f'tidegate_path_promised{{vnic="{name}",remote="c"}} 1' in served
        assert f'tidegate_path_bound_seconds{{vnic="{name}",remote="c"}} 0.' in served

    def all_are_back() -> bool:
        return network.ports(*ALL) == ports

    # A switch that knows nothing gets its vNICs in the order of their names.
    network.host.switch.kill()
    network.host.start_switch()
    network.until("the paths after another switch", all_are_back)
    assert network.granted() == ports
    network.host.replace_switch()
    network.until("the paths after a live upgrade", all_are_back)
    assert network.granted() == ports

    # The controller is away for longer than the lease: nothing is promised, and then all of it again.
    network.controller.kill()
    network.until("the end of the lease", lambda: not network.ports(*ALL))
    network.controller = network.start_controller()
    network.until("the paths after another controller", all_are_back)

    # The agent is: the controller releases its paths.
    network.host.kill_agent()
    network.until("the end of the paths", lambda: not network.granted())
    network.host.start_agent()
    network.until("the paths of another agent", all_are_back)
    assert network.granted() == ports
    assert "Traceback" not in network.controller.output()


@pytest.mark.nightly
def test_more_than_was_granted_is_no_path(network: ThreePairs) -> None:
    """A contract that grows while no controller answers takes nothing from paths of others."""
    network.apply("z")
    network.until("the path", partial(network.are_promised, "z"))
    port = network.ports("z")["z"]
    network.until("frames on it", partial(network.path_carries, "z", port))
    network.controller.kill()
    assert network.path_carries("z", port), "what was granted goes on"
    network.apply("z", rate="4mbit")
    assert not network.ports("z")
    assert not network.path_carries("z", port)
    network.controller = network.start_controller()
    network.until("the path after the controller's return", partial(network.are_promised, "z"))
    network.until("frames on it again", partial(network.path_carries, "z", port))
