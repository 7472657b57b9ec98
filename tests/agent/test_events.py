"""`tidegate events`: what happens is told as it happens."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.host import Host, tap_vnic, vhost_user_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.process import Process, wait_for

MAC = "52:54:00:00:0e:02"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A switch and an agent."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("ping")
    with Host(tmp_path / "h") as running:
        yield running


def watch(host: Host, *options: str) -> Process:
    """`tidegate events`, which listens."""
    log = host.folder / f"events{len(options)}.log"
    watching = Process([host.binary, "--api", host.api, "events", *options], log)
    # A vNIC that comes and goes is an event: it is heard once the stream has begun.
    number = 0

    def heard() -> bool:
        nonlocal number
        number += 1
        toml = vhost_user_vnic("probe", host.folder / f"probe{number}.sock", f"52:54:00:00:0f:{number:02x}")
        host.apply(toml)
        host.cli("vnic", "rm", "probe")
        return "probe" in watching.output()

    watching.wait_for("its first event", heard)
    return watching


def events(watching: Process, kind: str) -> list[dict[str, Any]]:
    """What `tidegate events --json` has printed of a kind."""
    lines = watching.output().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def test_a_miss_is_told_with_its_cause(host: Host, tmp_path: Path) -> None:
    """A real-time frame to a vNIC without a VM is dropped: a miss. The command ends with the agent."""
    with Stack(tmp_path / "a") as a, watch(host, "--json") as as_json, watch(host) as as_text:
        host.apply(
            vhost_user_vnic("sink", host.folder / "sink.sock", MAC, 'rx = { max = "1gbit" }')
            + tap_vnic(
                *("voice", a.path, "52:54:00:00:0e:01", 'tx = { max = "2mbit", burst = "2kB" }'),
                *('deadline = "1ms"', 'to = ["sink"]'),
            )
        )
        a.address("eth0", "10.13.0.1/24")
        a.run(f"ip neigh add 10.13.0.2 lladdr {MAC} dev eth0")
        # Misses before the agent's first look at a vNIC are none of its events.
        wait_for("the contract", lambda: any(e["about"] == "voice" for e in events(as_json, "contract")))

        def told() -> bool:
            a.try_run("ping -c 1 -W 1 10.13.0.2")
            return bool(events(as_json, "miss"))

        wait_for("the miss", told)
        miss = events(as_json, "miss")[0]
        assert (miss["about"], miss["miss"]["egress"], miss["miss"]["cause"]) == ("voice", "sink", "dropped")
        assert miss["miss"]["number"] >= 1
        assert miss["at"] == miss["miss"]["at"]
        wait_for("the line", lambda: "miss        voice: dropped" in as_text.output())
        host.kill_agent()
        assert as_json.popen.wait(10) == as_text.popen.wait(10) == 4
        assert "the agent ended" in as_text.output()
