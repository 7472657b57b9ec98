"""A controller that is killed (SIGKILL) in the middle of changes of real switches, its state in a file.

```text
 test ─ ask, release, miss ─▶ controller ─▶ file     SIGKILL ─▶ anew ─▶ the same paths, rules, reservations
 h1 ── frames of a path ──▶ s1 ══ s2, s4 ══ s3 ──▶ h3: none is lost
```
"""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lab.driven import Driven
from lab.fabric import Fabric, ring
from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands
from lab.ovs import COMMANDS
from lab.traffic import Flow

DSCP = 40
STILL = "still>h3"


@pytest.fixture(name="fabric")
def _fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    need_commands(*COMMANDS, "ovs-ofctl", "tc", "ethtool")
    need("no network namespaces: run as root, or `unshare --user --map-root-user`", can_make_namespaces())
    with Fabric(tmp_path_factory.mktemp("f"), ring(4)) as running:
        yield running


def flows(fabric: Fabric) -> dict[str, list[str]]:
    """Rules of all switches, without counters."""
    return {switch: sorted(fabric.dump_flows(switch)) for switch in fabric.ports}


def unrest(controller: Driven, seed: int, answered: dict[str, bool], over: threading.Event) -> None:
    """Paths come, move and go, one after the other, until the controller is gone."""
    choose = random.Random(seed)
    with suppress(OSError):
        while not over.is_set():
            number = choose.randrange(6)
            name = f"w{number}>h3"
            if answered.get(name):
                kind = choose.choice(["miss", "miss", "release"])
                if kind == "release":
                    answered.pop(name)
                    controller.order("release", name=name)
                    answered[name] = False
                else:
                    controller.order("miss", name=name)
                    time.sleep(0.1)
            else:
                answered.pop(name, None)
                reasons = controller.ask(name, 9100 + number, 500_000)
                assert not reasons, reasons
                answered[name] = True


@pytest.mark.parametrize("rounds", [1, pytest.param(15, marks=pytest.mark.nightly)])
def test_killed_in_the_middle_of_changes(fabric: Fabric, tmp_path: Path, rounds: int) -> None:
    """Paths that were answered are there, released ones are not; a path that was at rest loses no frame."""
    controller = Driven(fabric, tmp_path / "c", 6653, f'file = "{tmp_path}/state/s"')
    fabric.connect("tcp:127.0.0.1:6653")
    controller.wait()
    assert controller.ask(STILL, 9001) == ""
    answered: dict[str, bool] = {}
    choose = random.Random(rounds)
    flow = fabric.flow("h1", "h3", Flow(rounds * 2000, 4000, dscp=DSCP, source_port=9001), patience=20)
    for number in range(rounds):
        over = threading.Event()
        thread = threading.Thread(target=unrest, args=(controller, number, answered, over))
        thread.start()
        time.sleep(choose.uniform(1, 3))
        controller.process.kill()
        over.set()
        thread.join()
        held = dict(answered)
        controller.begin()
        controller.wait("the restart")
        found = controller.state()
        assert STILL in found["paths"]
        for name, there in held.items():
            assert (name in found["paths"]) == there, (name, there, found["paths"])
        # What was asked or released when it was killed may be there or not.
        answered = {name: True for name in found["paths"] if name != STILL}
        assert len(found["reserved"]) == len(found["paths"])
    report = flow.report()
    print(f"{rounds} kills in the middle of changes: {report}")
    assert report.lost == 0
    before = flows(fabric)
    paths = controller.state()["paths"]
    controller.process.kill()
    controller.begin()
    controller.wait("the restart")
    found = controller.state()
    print(f"killed at rest: {len(found['paths'])} paths, {found['changed']} changes of rules")
    assert (found["paths"], found["changed"], flows(fabric)) == (paths, 0, before)
    assert controller.process.stop() == 0
