"""`tidegate status`: what needs a person, and which command to run next, whatever is away."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from lab.host import Host, vhost_user_vnic
from lab.process import wait_for

MAC = {"cam": "52:54:00:00:10:01", "sink": "52:54:00:00:10:02"}


def status(host: Host, code: int) -> dict[str, Any]:
    """`tidegate status --json`, which ends with this code."""
    done = host.try_cli("status", "--json")
    assert done.returncode == code, done
    return dict(json.loads(done.stdout))


def kinds(host: Host) -> list[str]:
    """The kinds of what needs a person; the exit code says whether there are any."""
    done = host.try_cli("status", "--json")
    found = [thing["kind"] for thing in json.loads(done.stdout)["attention"]]
    assert done.returncode == (1 if found else 0)
    return found


def wait_for_kinds(host: Host, *expected: str) -> None:
    """Wait until these kinds of things need a person, and no others."""
    wait_for(f"{expected} to need a person", lambda: kinds(host) == list(expected))


def contract(host: Host, name: str, *lines: str) -> str:
    """The contract of a vNIC whose socket is in the host's folder."""
    return vhost_user_vnic(name, host.folder / f"{name}.sock", MAC[name], *lines)


@pytest.mark.abreast
def test_a_refused_file_is_named_everywhere(host: Host) -> None:
    """With line and reason, in `ls`, `show`, `why` and `status`; its earlier contracts stay in force."""
    path = host.etc / "cam.toml"
    good = contract(host, "cam", 'tx = { max = "20mbit" }')
    path.write_text(good)
    wait_for("cam", lambda: "cam" in host.names())
    assert host.try_cli("status").stdout.startswith("All is well: nothing needs a person.\n")

    path.write_text(good.replace("20mbit", "20") + contract(host, "sink"))
    wait_for_kinds(host, "refused-file")
    printed = host.try_cli("status")
    assert printed.returncode == 1
    assert printed.stderr == ""
    line = good.split("\n").index('tx = { max = "20mbit" }') + 1
    first, _, second, reason, *_ = printed.stdout.split("\n")
    assert first == "1 thing needs a person."
    assert second == f"contract file refused: {path}:{line}"
    assert f'{path}:{line}:14: vnic.cam.tx.max: rate "20" has no unit' in reason
    assert "its earlier contracts are in force, for cam" in printed.stdout
    # What it tells to run says what is wrong, and nothing about whose contracts these are.
    (command,) = [text.strip() for text in printed.stdout.split("\n") if text.startswith("  run: ")]
    done = host.try_cli(*shlex.split(command.removeprefix("run: tidegate ")))
    assert done.returncode == 3
    assert "has no unit" in done.stderr

    listed = host.cli("vnic", "ls")
    assert "waiting (file refused)" in listed
    assert f"Refused: {path}:{line}:14: vnic.cam.tx.max" in listed
    assert "concerns: cam, sink; " in listed
    assert "max 20mbit" in host.cli("vnic", "show", "cam")
    assert host.show("cam").document["state"] == "in force"
    assert host.show("sink").document["state"] == "refused"
    for command_line in (["vnic", "show"], ["why"]):
        for name in ("cam", "sink"):
            assert f"is refused, at line {line}:14: " in host.cli(*command_line, name), name

    # Valid, and more than fits: the same command says that.
    path.write_text(good.replace("20mbit", "21mbit") + contract(host, "sink", 'to = ["nobody"]'))
    wait_for("the other reason", lambda: "nobody" in host.try_cli("status").stdout)
    done = host.try_cli(*shlex.split(command.removeprefix("run: tidegate ")))
    assert done.returncode == 3
    assert "nobody" in done.stderr
    assert "belongs to" not in done.stderr
    path.write_text(good)
    wait_for_kinds(host)
    assert host.names() == {"cam"}


@pytest.mark.abreast
def test_the_log_says_which_part_of_a_refused_file_is_in_force(host: Host) -> None:
    """Of a file that was never accepted none is; of another file its earlier contracts."""
    path = host.etc / "cam.toml"
    log = host.folder / "agent.log"

    def has_log_line(how: str, kept: str) -> bool:
        return any(f"this file {how}; {kept}: " in line for line in log.read_text().split("\n"))

    path.write_text(contract(host, "cam", 'tx = { max = "20" }'))
    wait_for("the first", lambda: has_log_line("has errors", "no contract of this file is in force"))
    path.write_text(contract(host, "cam", 'to = ["nobody"]'))
    wait_for("a refusal", lambda: has_log_line("is refused", "no contract of this file is in force"))
    assert "stays in force" not in log.read_text()
    path.write_text(contract(host, "cam"))
    wait_for_kinds(host)
    path.write_text(contract(host, "cam", 'to = ["nobody"]'))
    wait_for("another refusal", lambda: has_log_line("is refused", "its earlier contracts stay in force"))


def test_without_a_switch(host: Host) -> None:
    """The place is away, its contracts wait, their deadlines are not promised; then all is well again."""
    envelope = 'tx = { max = "10mbit", burst = "4kB" }'
    cam = contract(host, "cam", envelope, 'deadline = "2s"', 'to = ["sink"]')
    # On a busy machine a loop takes longer than any sensible budget.
    host.apply('[host]\nhost-latency = "1s"\n' + cam + contract(host, "sink", 'rx = { max = "100mbit" }'))
    assert status(host, 0)["deadlines"] == {"promised": 1, "suspended": 0}
    host.switch.kill()
    wait_for_kinds(host, "place-away")
    seen = status(host, 1)
    assert seen["vnics"] == {"in_force": 0, "pending": 2, "failed": 0, "refused": 0}
    assert seen["deadlines"] == {"promised": 0, "suspended": 1}
    (away,) = seen["attention"]
    assert away["next"] == "systemctl status tidegate-switch"
    assert "contracts of 2 vNICs are pending" in away["what"]
    assert "not promised" in host.cli("vnic", "ls")
    assert "2s, not promised right now: its contract is not in force" in host.cli("vnic", "show", "cam")
    printed = host.cli("why", "cam")
    assert "Its deadline of 2s is not promised right now: its contract is not in force" in printed
    assert "kept its deadline" not in printed
    assert "not promised" in host.cli("top", "--once")
    rows = {row["name"]: row for row in json.loads(host.cli("top", "--json"))}
    assert rows["cam"]["tx_rate"] is None
    assert rows["cam"]["deadline_suspended"].startswith("its contract is not in force")
    assert "not promised" in host.cli("plan", "-f", host.file(cam))
    host.start_switch()
    wait_for_kinds(host)


@pytest.mark.abreast
def test_without_an_agent(host: Host) -> None:
    """It says so, in the same form, and ends as every command does without an agent."""
    host.kill_agent()
    printed = host.try_cli("status")
    assert printed.returncode == 4
    assert "away: agent" in printed.stdout
    assert "run: systemctl status tidegate-agent" in printed.stdout
    assert "Contracts in force stay in force" in printed.stdout
    assert f"cannot reach the agent at {host.api}" in printed.stderr
    (agent,) = status(host, 4)["attention"]
    assert (agent["kind"], agent["about"]) == ("place-away", ["agent"])


@pytest.mark.abreast
def test_a_place_that_no_contract_names_may_be_away(tmp_path: Path) -> None:
    """A host that has SR-IOV functions only needs no switch."""
    with Host(tmp_path) as host:
        host.switch.kill()
        wait_for("the switch to be missed", lambda: "switch" in away(host))
        assert kinds(host) == []
        assert "switch     away" in host.cli("status")


def away(host: Host) -> list[str]:
    """The places that do not answer."""
    return [place["name"] for place in status(host, 0)["places"] if not place["reachable"]]
