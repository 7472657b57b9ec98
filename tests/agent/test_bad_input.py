"""Bad input: a clear error that names what is wrong, and nothing half-done."""

import random
import socket
import subprocess
from pathlib import Path

import pytest

from lab.host import BINARY, Host, tap_vnic, vhost_user_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need
from lab.process import wait_for

pytestmark = pytest.mark.abreast

MAC = "52:54:00:00:06:01"
BASE_MAC = "52:54:00:00:06:fe"


@pytest.fixture
def base(host: Host) -> Host:
    """A host with one vNIC, `base`, that must survive whatever is tried."""
    host.apply(vhost_user_vnic("base", host.folder / "base.sock", BASE_MAC, 'rx = { max = "100mbit" }'))
    return host


def refused(host: Host, toml: str, *facts: str) -> str:
    """`toml` is refused by plan and by apply, with all `facts` in the message and no change; the message."""
    before = (host.names(), host.show("base").in_force)
    assert before[1]
    path = host.file(toml, "bad.toml")
    for verb in ("plan", "apply"):
        done = host.try_cli(verb, "-f", path)
        message = done.stdout + done.stderr
        assert done.returncode != 0, f"{verb} took it: {message}"
        missing = [fact for fact in facts if fact.lower() not in message.lower()]
        assert not missing, f"{verb} does not say {missing}:\n{message}"
        assert "panicked" not in message
    assert (host.names(), host.show("base").in_force) == before
    return message


def vnic(host: Host, *lines: str, mac: str = MAC) -> str:
    """A contract named bad; its `lines` begin at line 5."""
    return vhost_user_vnic("bad", host.folder / "bad.sock", mac, *lines)


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        ('speed = "1gbit"', ("speed", "unknown")),
        ('txx = { max = "1gbit" }', ("txx", "tx")),
        ('tx = { maximum = "1gbit" }', ("maximum", "max")),
        ("wieght = 3", ("wieght", "weight")),
        ('tx = { max = "100" }', ("100", "unit")),
        ("tx = { max = 100 }", ("100", "unit")),
        ('tx = { max = "-1mbit" }', ("-1mbit",)),
        ('tx = { max = "0mbit" }', ("0mbit",)),
        ('tx = { max = "nanmbit" }', ("nan",)),
        ("tx = { max = nan }", ("nan",)),
        ('tx = { max = "401gbit" }', ("401gbit", "400")),
        ('tx = { max = "10mbit", min = "20mbit" }', ("min", "max", "10mbit", "20mbit")),
        ('deadline = "500us"', ("deadline", "tx.max", "tx.burst", "to")),
        ('tx = { burst = "4kB" }\ndeadline = "500us"\nto = ["base"]', ("deadline", "tx.max")),
        ('tx = { max = "5mbit" }\ndeadline = "500us"\nto = ["base"]', ("deadline", "tx.burst")),
        ('tx = { max = "5mbit", burst = "4kB" }\ndeadline = "500us"', ("deadline", "to")),
        ('tx = { max = "5mbit", min = "1mbit" }\nto = ["nobody"]', ("nobody",)),
        ("weight = 0", ("weight", "1")),
        ("mtu = 20", ("mtu", "68")),
        ("queues = 0", ("queues", "1")),
        ("segment = 3", ("segment",)),
    ],
)
def test_contract(base: Host, line: str, facts: tuple[str, ...]) -> None:
    """A contract that makes no sense: the message names file, key and value."""
    message = refused(base, vnic(base, *line.split("\n")), "bad.toml", *facts)
    assert any(f":{number}" in message for number in range(1, 9)), f"no line number in: {message}"


@pytest.mark.parametrize(("text", "fact"), [("52:54:00:00:06", "mac"), ("01:00:5e:00:00:01", "multicast")])
def test_mac(base: Host, text: str, fact: str) -> None:
    """A MAC that is none, or is a group's."""
    refused(base, vnic(base, mac=text), text, fact)


def test_segment_out_of_range(base: Host) -> None:
    """A segment is a VNI: 24 bits."""
    refused(base, vnic(base).replace("segment = 1", "segment = 16777216"), "segment", "16777215")


def test_same_mac_twice(base: Host) -> None:
    """In one file, or against a vNIC that is there: both names are in the message."""
    refused(base, vnic(base, mac=BASE_MAC), BASE_MAC, "base", "bad")
    two = vnic(base) + vhost_user_vnic("other", base.folder / "other.sock", MAC)
    refused(base, two, MAC, "other", "bad")


def test_file_half_written(base: Host) -> None:
    """A file that ends in mid-word applies nothing of what it begins with."""
    whole = vnic(base) + vhost_user_vnic("next", base.folder / "next.sock", "52:54:00:00:06:02")
    for cut in (len(whole) - 3, whole.index("[vnic.next]") + 5, whole.index("next.sock")):
        refused(base, whole[:cut], "bad.toml")


def test_half_written_file_in_the_configuration(base: Host) -> None:
    """An agent that starts over a half-written file says so, and what runs goes on running."""
    base.kill_agent()
    (base.etc / "half.toml").write_text('[vnic.half]\nattach = { vhost-user = "/ru')
    base.agent.popen = subprocess.Popen(
        base.agent_command(), stdout=base.agent.log.open("ab"), stderr=subprocess.STDOUT
    )
    wait_for("the agent to name the file", lambda: "half.toml" in base.agent.output())
    assert (base.folder / "base.sock").is_socket()
    (base.etc / "half.toml").unlink()
    base.agent.stop()
    base.start_agent()
    assert base.names() == {"base"}


def test_socket_path(base: Host) -> None:
    """A socket path that exists as something else, is too long, relative, or lies in a missing folder."""
    taken = base.folder / "taken"
    taken.write_text("somebody's file")
    refused(base, vhost_user_vnic("bad", taken, MAC), str(taken), "exists")
    assert taken.read_text() == "somebody's file"
    missing = base.folder / "nowhere" / "bad.sock"
    refused(base, vhost_user_vnic("bad", missing, MAC), str(missing.parent))
    assert not missing.parent.exists()
    refused(base, vhost_user_vnic("bad", base.folder / ("x" * 120), MAC), "107")
    refused(base, vhost_user_vnic("bad", Path("run/bad.sock"), MAC), "run/bad.sock", "absolute")


def test_tap_taken_or_nowhere(base: Host, tmp_path: Path) -> None:
    """A device name that is in use, too long, or in a namespace that is not there."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    with Stack(tmp_path / "stack") as stack:
        stack.run("ip link add eth0 type veth peer name other")
        refused(base, tap_vnic("bad", stack.path, MAC), "eth0")
        assert "veth" in stack.run("ip -d link show eth0")
        refused(base, tap_vnic("bad", stack.path, MAC, device="sixteen-letters-"), "sixteen-letters-", "15")
        refused(base, tap_vnic("bad", tmp_path / "no-namespace", MAC), "no-namespace")


def test_tap_that_goes_away(base: Host, tmp_path: Path) -> None:
    """A tap deleted by another program is put back; the switch and the other ports do not suffer."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    with Stack(tmp_path / "stack") as stack:
        base.apply(tap_vnic("t", stack.path, MAC))
        stack.run("ip link show eth0 && ip link delete eth0")
        wait_for(
            "the tap to come back", lambda: stack.try_run("ip link show eth0").returncode == 0, timeout=30
        )
        base.check_alive()


def test_contract_that_does_not_fit(base: Host) -> None:
    """The refusal names the egress and the numbers: asked, capacity."""
    refused(
        base,
        vnic(base, 'tx = { max = "200mbit", min = "150mbit" }', 'to = ["base"]'),
        *("bad", "base", "150", "100"),
    )
    refused(
        base,
        vnic(base, 'tx = { max = "50mbit", burst = "64kB" }', 'deadline = "300us"', 'to = ["base"]'),
        *("bad", "base", "deadline"),
    )


def test_paths_below_no_root(base: Host, tmp_path: Path) -> None:
    """A contract's socket, guest or namespace in a folder that the agent was not told of is refused."""
    refused(base, vhost_user_vnic("bad", tmp_path / "s.sock", MAC), str(tmp_path), "is not below")
    refused(base, vnic(base, f'guest = "{tmp_path}/limit"'), "guest", "is not below")
    refused(base, tap_vnic("bad", tmp_path / "netns", MAC), "is not below")
    assert not list(tmp_path.iterdir())


def test_two_agents_on_one_state(base: Host) -> None:
    """The second ends with a message that names the folder; the first goes on."""
    command = [*base.agent_command()[:-1], base.folder / "other-api.sock"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert second.returncode != 0
    assert str(base.state) in second.stdout + second.stderr
    assert base.names() == {"base"}


def test_two_agents_in_one_network_namespace(base: Host) -> None:
    """The second, on a state of its own, ends with the pid of the first; the first goes on."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    there = f"--net=/proc/{base.agent.pid}/ns/net"
    command: list[str | Path] = [
        *("nsenter", there, BINARY, "agent", "--config", base.etc, "--state", base.folder / "other-state"),
        *("--switch", base.switch_socket, "--api", base.folder / "other-api.sock"),
    ]
    second = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert second.returncode != 0
    assert f"an agent (pid {base.agent.pid}) already manages the interfaces" in second.stderr
    assert base.names() == {"base"}


def test_unknown_names(base: Host) -> None:
    """Commands about a vNIC that is not there say so and fail."""
    for command in (
        ("vnic", "show", "ghost"),
        ("vnic", "rm", "ghost"),
        ("vnic", "set", "ghost", "tx.max=1mbit"),
        ("why", "ghost"),
        ("capture", "ghost", "-w", str(base.folder / "ghost.pcapng")),
    ):
        done = base.try_cli(*command)
        assert done.returncode != 0, command
        assert "ghost" in done.stderr, command


def test_bad_set(base: Host) -> None:
    """`vnic set` with a wrong key or value changes nothing."""
    before = base.show("base").in_force
    assert before
    for change, fact in (("tx.maximum=1mbit", "maximum"), ("tx.max=fast", "fast"), ("weight", "=")):
        done = base.try_cli("vnic", "set", "base", change)
        assert done.returncode != 0
        assert fact in done.stdout + done.stderr
    assert base.show("base").in_force == before


def test_no_agent(base: Host) -> None:
    """Without an agent the command line names the socket it tried."""
    base.kill_agent()
    done = base.try_cli("vnic", "ls")
    assert done.returncode != 0
    assert str(base.api) in done.stderr


def test_missing_file(base: Host) -> None:
    """apply -f of a file that is not there."""
    done = base.try_cli("apply", "-f", base.folder / "not-there.toml")
    assert done.returncode != 0
    assert "not-there.toml" in done.stderr


def connect(host: Host) -> socket.socket:
    """A front end's connection to port base."""
    front_end = socket.socket(socket.AF_UNIX)
    front_end.settimeout(5)
    front_end.connect(str(host.folder / "base.sock"))
    return front_end


def ends(front_end: socket.socket) -> bool:
    """Whether the switch closes this connection."""
    try:
        while front_end.recv(4096):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_front_end_connects_twice(base: Host) -> None:
    """The second waits, the third is turned away; the first is not disturbed."""
    with connect(base) as first:
        wait_for("the first", lambda: base.show("base").connection != "waiting")
        with connect(base):
            wait_for("the second", lambda: base.show("base").document["heir"])
            with connect(base) as third:
                assert ends(third)
        # GET_FEATURES (vhost-user: request 1, version 1, no payload) is still answered.
        first.sendall(bytes([1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]))
        assert len(first.recv(20, socket.MSG_WAITALL)) == 20
        assert base.show("base").document["refused_connections"] >= 1


@pytest.mark.parametrize("seed", range(4))
def test_front_end_speaks_garbage(base: Host, seed: int) -> None:
    """The connection ends, `show` says why, and the next front end is served."""
    with connect(base) as front_end:
        front_end.sendall(random.Random(seed).randbytes(4096))
        front_end.shutdown(socket.SHUT_WR)
        assert ends(front_end)
    wait_for("the reason", lambda: base.show("base").last_error)
    base.check_alive()
    with connect(base) as front_end:
        front_end.sendall(bytes([1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]))
        assert len(front_end.recv(20, socket.MSG_WAITALL)) == 20


@pytest.mark.parametrize("length", [0xFFFFFFFF, 0x10000, 4097])
def test_front_end_announces_a_wild_length(base: Host, length: int) -> None:
    """A message longer than any there is ends the connection at once, unread."""
    with connect(base) as front_end:
        front_end.sendall(b"\x05\0\0\0\x01\0\0\0" + length.to_bytes(4, "little") + b"\0" * 64)
        assert ends(front_end)
    wait_for("the reason", lambda: base.show("base").last_error)


def test_binary_without_arguments() -> None:
    """Usage on the error output, not a stack trace."""
    need("no release build: cargo build --release", BINARY.exists())
    done = subprocess.run([BINARY], capture_output=True, text=True, timeout=10, check=False)
    assert done.returncode != 0
    assert "Usage" in done.stderr
