"""What a person types: every command of the tool, on a host with traffic."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.host import Host, tap_vnic, vhost_user_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.process import wait_for

MAC = {"a": "52:54:00:00:07:0a", "b": "52:54:00:00:07:0b"}


@pytest.fixture
def stacks(host: Host, tmp_path: Path) -> Iterator[tuple[Stack, Stack]]:
    """Two stacks that ping each other."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("ping")
    with Stack(tmp_path / "a") as a, Stack(tmp_path / "b") as b:
        host.apply(
            tap_vnic("a", a.path, MAC["a"], 'tx = { max = "50mbit" }') + tap_vnic("b", b.path, MAC["b"])
        )
        a.address("eth0", "10.7.0.1/24")
        b.address("eth0", "10.7.0.2/24")
        a.run("ping -c 1 -W 5 10.7.0.2")
        yield a, b


def port(host: Host, name: str, mac: str, *lines: str) -> str:
    """A vhost-user contract."""
    return vhost_user_vnic(name, host.folder / f"{name}.sock", mac, *lines)


@pytest.mark.abreast
def test_plan_changes_nothing(host: Host) -> None:
    """`plan` says what would change; only `apply` does it; then there is nothing left to plan."""
    contract = host.file(port(host, "one", MAC["a"]))
    assert "one" in host.cli("plan", "-f", contract)
    assert host.names() == set()
    assert not (host.folder / "one.sock").exists()
    host.cli("apply", "-f", contract)
    assert host.names() == {"one"}
    assert (host.folder / "one.sock").is_socket()
    before = (host.folder / "one.sock").stat().st_ino
    host.cli("apply", "-f", contract)
    assert (host.folder / "one.sock").stat().st_ino == before


@pytest.mark.abreast
def test_rm_restores(host: Host, stacks: tuple[Stack, Stack]) -> None:
    """`vnic rm` takes tap and socket away."""
    host.apply(port(host, "one", "52:54:00:00:07:01"))
    host.cli("vnic", "rm", "one")
    assert not (host.folder / "one.sock").exists()
    host.cli("vnic", "rm", "a")
    assert stacks[0].try_run("ip link show eth0").returncode != 0
    assert host.names() == {"b"}


@pytest.mark.abreast
def test_set_is_shown(host: Host) -> None:
    """`vnic set` changes one key and leaves the others."""
    host.apply(port(host, "one", MAC["a"], 'tx = { max = "50mbit" }', "weight = 3"))
    host.cli("vnic", "set", "one", "tx.max=70mbit")
    shown = host.cli("vnic", "show", "one", "--json")
    assert "70mbit" in shown
    assert "50mbit" not in shown
    assert "70mbit" in host.cli("vnic", "show", "one")


@pytest.mark.abreast
def test_a_files_vnic_belongs_to_the_file(host: Host) -> None:
    """The API refuses to change or remove what a file owns, and names the file."""
    host.kill_agent()
    (host.etc / "owned.toml").write_text(port(host, "mine", MAC["a"], 'tx = { max = "50mbit" }'))
    host.start_agent()
    assert host.names() == {"mine"}
    for command in (("vnic", "rm", "mine"), ("vnic", "set", "mine", "tx.max=1gbit")):
        done = host.try_cli(*command)
        assert done.returncode != 0
        assert "owned.toml" in done.stderr
    assert "50mbit" in host.cli("vnic", "show", "mine", "--json")


@pytest.mark.abreast
def test_json_everywhere(host: Host, stacks: tuple[Stack, Stack]) -> None:
    """--json prints one JSON document and nothing else."""
    contract = host.file(port(host, "two", "52:54:00:00:07:02"))
    for command in (
        ("vnic", "ls"),
        ("vnic", "show", "a"),
        ("why", "a"),
        ("plan", "-f", str(contract)),
        ("apply", "-f", str(contract)),
    ):
        json.loads(host.cli(*command, "--json"))


def test_the_wait_for_a_vnics_own_limit_is_reported(host: Host, stacks: tuple[Stack, Stack]) -> None:
    """`why` names a vNIC's own limit as where frames waited, of a window too; another limit begins anew."""
    a, _ = stacks
    frames, bytes_each = 300, 1442
    a.run(f"ping -q -c {frames} -l {frames} -s 1400 -W 2 10.7.0.2")
    why = json.loads(host.cli("why", "a", "--last", "10s", "--json"))
    waited = why["tx_wait"]["waited"]
    assert why["tx_wait"]["limit"] == "tx.max = 50mbit"
    # More than waits for 10 ms is dropped.
    assert waited["count"] >= frames / 10
    one = bytes_each * 8 / 50e6 * 1e9
    assert waited["max"] > 3 * one, "they were sent at once"
    assert why["window"]["covers_ns"] > 0
    for options in ((), ("--last", "10s")):
        said = host.cli("why", "a", *options)
        assert "what it sent: before its own tx.max = 50mbit" in said
        assert ("Figures of the last" in said) == bool(options)
        assert "for its own tx.max: p50" in host.cli("vnic", "show", "a", *options)
    rows = {row["name"]: row for row in json.loads(host.cli("top", "--last", "1m", "--json"))}
    assert rows["a"]["tx_wait_p999"] > one > 0
    assert rows["b"]["tx_wait_p99"] is None
    assert 'tidegate_vnic_token_wait_seconds_count{vnic="a",direction="tx"}' in host.get("/metrics")
    host.cli("vnic", "set", "a", "tx.max=40mbit")
    why = json.loads(host.cli("why", "a", "--last", "1h", "--json"))
    assert why["window"]["began"] == "contract"
    shown = json.loads(host.cli("vnic", "show", "a", "--json"))["stats"]
    assert shown["tx"]["frames"] >= frames / 10
    for waits in (why.get("tx_wait", {}).get("waited"), shown.get("tokens_tx")):
        assert waits is None or waits["count"] < frames / 10
    assert host.try_cli("why", "a", "--last", "2m").returncode == 2


@pytest.mark.abreast
def test_a_window_forgets_and_begins_anew(host: Host, stacks: tuple[Stack, Stack]) -> None:
    """What happened more than 10 s ago is not of the last 10 s; another contract begins all windows anew."""
    a, _ = stacks

    def window(last: str) -> tuple[int, str]:
        shown = json.loads(host.cli("vnic", "show", "a", "--last", last, "--json"))
        return shown["stats"]["tx"]["frames"], shown["window"].get("began", "")

    pings, others = 200, 20
    a.run(f"ping -q -c {pings} -i 0.002 10.7.0.2")
    wait_for("the frames in the window", lambda: window("10s")[0] >= pings)
    # A window is up to a second longer, and is looked at twice a second.
    time.sleep(12)
    assert window("10s")[0] < others
    assert window("1m")[0] >= pings
    host.cli("vnic", "set", "a", "weight=2")
    for last in ("10s", "1m", "1h"):
        frames, began = window(last)
        assert frames < others
        assert began == "contract"


@pytest.mark.abreast
def test_capture(host: Host, stacks: tuple[Stack, Stack]) -> None:
    """`capture` writes a pcapng that Wireshark's tools read, with both directions of the vNIC."""
    need_commands("tshark", "capinfos")
    a, b = stacks
    ping = a.spawn("ping", "-i", "0.05", "10.7.0.2")
    file = host.folder / "a.pcapng"
    host.cli("capture", "a", "-w", file, "--count", "20")
    ping.stop()
    assert "pcapng" in b.run(["capinfos", str(file)])
    frames = b.run(["tshark", "-r", str(file), "-T", "fields", "-e", "icmp.type"]).split()
    assert {"0", "8"} <= set(frames)


@pytest.mark.abreast
def test_deadline_is_admitted_and_shown(host: Host) -> None:
    """A contract that fits is admitted, and `show` gives its delay bound."""
    host.apply(
        port(host, "sink", MAC["b"], 'rx = { max = "1gbit" }')
        + port(
            host,
            "voice",
            MAC["a"],
            'tx = { max = "2mbit", burst = "2kB" }',
            'deadline = "1ms"',
            'to = ["sink"]',
        )
    )
    shown = host.cli("vnic", "show", "voice")
    assert "1ms" in shown
    assert "bound" in shown


@pytest.mark.abreast
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions(host: Host, shell: str) -> None:
    """Completions know the commands."""
    text = host.cli("completions", shell)
    assert all(word in text for word in ("apply", "vnic", "capture", "why"))


@pytest.mark.abreast
def test_api_socket_by_environment(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """TIDEGATE_API stands for --api."""
    monkeypatch.setenv("TIDEGATE_API", str(host.api))
    assert host.try_cli("vnic", "ls").returncode == 0
