"""Contracts of libvirt's domains, with a real libvirtd: start, refusal, attach, detach, crash, restart."""

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from lab.host import BINARY, Host
from lab.initramfs import ROOT
from lab.libvirt import DomainGuest, Libvirt, LibvirtError, bridged, contracts, domain, vhost_user
from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands
from lab.process import Process, wait_for
from lab.rates import Limit, Rate

MAC = "52:54:00:00:0b:01"
OTHER = "52:54:00:00:0b:02"

DEFAULT_BURST = 65_536
"""Burst of a limit whose contract states none and whose rate is below 52 Mbit/s, bytes."""

SLACK = 3.0
"""Seconds that a busy machine may take longer over work that waits for no other program."""


@dataclass
class Lab:
    """libvirtd with the hook installed, an agent beside it that keeps its taps."""

    libvirt: Libvirt
    host: Host
    watch: Process

    def start(self, name: str, *devices: str, asked: str = "", more: str = "") -> None:
        """Start a domain with these contracts in its metadata, one per line."""
        metadata = contracts(asked.splitlines()) if asked else ""
        self.libvirt.create(domain(name, *devices, metadata=metadata, more=more))

    def refused(self, name: str, *devices: str, asked: str) -> str:
        """Start a domain, which has to fail; what virsh says."""
        with pytest.raises(LibvirtError) as error:
            self.start(name, *devices, asked=asked)
        assert name not in self.libvirt.domains()
        return str(error.value)

    def limit(self, name: str) -> tuple[int | None, int | None]:
        """The limits of what a vNIC sends and receives, bit/s; nothing where it is not in force."""
        limits = self.host.show(name).in_force.get("limits", {})
        return limits.get("tx_bps"), limits.get("rx_bps")

    def reason(self, name: str) -> str:
        """What a person should know of a vNIC."""
        return str(self.host.show(name).document.get("reason") or "")

    def wait_gone(self, *names: str) -> None:
        """Wait until there is no such vNIC."""
        wait_for(f"{names} to go", lambda: not self.host.names() & set(names))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One libvirtd for all: it takes some seconds to look at QEMU."""
    need_commands("libvirtd", "virsh", "qemu-system-x86_64", "nsenter")
    # A user namespace's root may not set QEMU's groups, which libvirtd does.
    may_set_groups = Path("/proc/self/setgroups").read_text().strip() == "allow"
    need("libvirtd runs VMs as root only, not in a user namespace", os.geteuid() == 0 and may_set_groups)
    need("network namespaces and /dev/net/tun", can_make_namespaces())
    folder = tmp_path_factory.mktemp("l")
    (folder / "libvirt").mkdir()
    api = folder / "host" / "api.sock"
    install(folder / "libvirt" / "hooks", api)
    with (
        Libvirt(folder / "libvirt") as libvirt,
        Host(folder / "host", agent_wrapper=libvirt.enter_network) as host,
        libvirt.watch(api) as watch,
    ):
        yield Lab(libvirt, host, watch)
        host.check_alive()
        assert watch.running, watch.output()


@pytest.fixture(autouse=True)
def _no_domains_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test that failed left running is not the next one's."""
    yield
    if "lab" in request.fixturenames:
        lab: Lab = request.getfixturevalue("lab")
        for name in lab.libvirt.domains():
            lab.libvirt.try_virsh("destroy", name)


@contextlib.contextmanager
def stopped(process: Process) -> Iterator[None]:
    """A process that does nothing for some time."""
    process.popen.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.popen.send_signal(signal.SIGCONT)


def install(hooks: Path, api: Path, *options: str) -> str:
    """`tidegate libvirt install-hook`; what it says."""
    return tidegate("--api", api, "libvirt", "install-hook", "--hooks-dir", hooks, *options)


def tidegate(*arguments: str | Path) -> str:
    """A command of tidegate that must succeed; its standard output."""
    return subprocess.run([BINARY, *arguments], capture_output=True, text=True, check=True, timeout=30).stdout


@pytest.mark.abreast
def test_a_domain_starts_and_ends_with_its_contract(lab: Lab) -> None:
    """In force when virsh returns, the domain's alone, gone with it."""
    lab.start("web", bridged(MAC), asked=f"mac='{MAC}' name='web' tx.max='50mbit' rx.max='100mbit'")
    assert lab.limit("web") == (50_000_000, 100_000_000)
    assert lab.host.show("web").document["owner"] == "libvirt:web"
    assert "htb 7464:" in lab.libvirt.run("tc", "qdisc", "show")
    refused = lab.host.try_cli("vnic", "set", "web", "tx.max=1mbit")
    assert refused.returncode == 3
    assert 'belongs to the libvirt domain "web"' in refused.stderr
    lab.libvirt.virsh("destroy", "web")
    assert "web" not in lab.host.names()


@pytest.mark.abreast
def test_a_contract_that_cannot_be_had_keeps_the_domain_from_starting(lab: Lab) -> None:
    """Virsh says why, with the place; nothing is left of it."""
    said = lab.refused("web", bridged(MAC), asked=f"mac='{MAC}' tx.max='500'")
    assert 'rate "500" has no unit' in said
    said = lab.refused("web", bridged(MAC), asked=f"mac='{MAC}' segment='7'")
    assert "on bridge br0, which does not filter VLANs" in said
    assert lab.host.names() == set()
    lab.start("web", bridged(MAC))
    lab.libvirt.virsh("destroy", "web")


@pytest.mark.abreast
def test_interfaces_come_and_go_while_the_domain_runs(lab: Lab) -> None:
    """libvirt calls no hook for these: `watch` sees them."""
    lab.start("web", bridged(MAC), asked=f"mac='{MAC}' name='web'\nmac='{OTHER}' name='more' rx.max='5mbit'")
    assert lab.host.names() == {"web"}
    device = lab.libvirt.xml(bridged(OTHER), "device")
    lab.libvirt.virsh("attach-device", "web", device)
    wait_for("the attached interface's contract", lambda: "more" in lab.host.names())
    assert lab.limit("more") == (None, 5_000_000)
    new = contracts([f"mac='{OTHER}' name='more' rx.max='7mbit'"])
    lab.libvirt.virsh(
        *("metadata", "web", "https://tidegate.dev/libvirt/1", "--key", "tidegate"),
        *("--set", new, "--live"),
    )
    wait_for("the new limit", lambda: lab.limit("more") == (None, 7_000_000))
    lab.wait_gone("web")
    lab.libvirt.virsh("destroy", "web")
    assert lab.host.names() == set()


@pytest.mark.abreast
def test_a_bandwidth_is_kept_here(lab: Lab) -> None:
    """libvirt's limits are taken over, in the VM's view."""
    bandwidth = "<bandwidth><inbound average='1000' burst='128'/><outbound average='500'/></bandwidth>"
    lab.start("web", bridged(MAC, bandwidth))
    name = "web-5254" + MAC[6:].replace(":", "")
    assert lab.limit(name) == (4_000_000, 8_000_000)
    tap = lab.host.show(name).document["contract"]["attach"]["netdev"]["name"]
    assert "htb 7464: root" in lab.libvirt.run("tc", "qdisc", "show", "dev", tap)
    assert "not restored" not in lab.reason(name)
    # As where a domain ends, but its tap stays: libvirt's own is there again.
    state = lab.libvirt.run("cat", "/run/libvirt/qemu/web.xml")
    hook = ("--api", lab.host.api, "libvirt", "hook", "web", "release", "end", "-")
    with stopped(lab.watch):
        subprocess.run(lab.libvirt.enter(BINARY, *hook), input=state, text=True, check=True, timeout=30)
        assert lab.host.names() == set()
        assert lab.libvirt.shaping(tap) == lab.libvirt.shaping_by_libvirt(tap)
    lab.libvirt.virsh("destroy", "web")


@pytest.mark.abreast
def test_a_bandwidth_that_cannot_come_back_keeps_no_domain_from_starting(lab: Lab) -> None:
    """The log and the vNIC say what is lost."""
    odd = lab.libvirt.folder / "odd"
    odd.touch()
    try:
        lab.start("web", bridged(MAC, "<bandwidth><inbound average='1000'/></bandwidth>"))
    finally:
        odd.unlink()
    name = "web-5254" + MAC[6:].replace(":", "")
    assert lab.limit(name) == (None, 8_000_000)
    why = "qdisc htb 1: at root: a size table cannot be restored later"
    lost = f"are not restored when the contract ends: {why}"
    wait_for("the vNIC to say it", lambda: lost in lab.reason(name))
    assert f"are taken over, and {lost}" in lab.host.agent.output()
    lab.libvirt.virsh("destroy", "web")
    assert lab.host.names() == set()


@pytest.mark.abreast
def test_migrated(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The contract goes with the domain: in force where it comes in, or it does not come in."""
    folder = tmp_path_factory.mktemp("m")
    hooks, api = folder / "libvirt" / "hooks", folder / "host" / "api.sock"
    (folder / "libvirt").mkdir()
    install(hooks, api)
    with (
        Libvirt(folder / "libvirt") as there,
        Host(folder / "host", agent_wrapper=there.enter_network) as host,
    ):
        lab.start("web", bridged(MAC), asked=f"mac='{MAC}' name='web' tx.max='50mbit'")
        host.kill_agent()
        with pytest.raises(LibvirtError, match="cannot reach the agent"):
            lab.libvirt.migrate("web", there)
        assert (lab.libvirt.domains(), lab.limit("web")) == ({"web"}, (50_000_000, None))
        host.start_agent()
        lab.libvirt.migrate("web", there)
        assert (there.domains(), lab.libvirt.domains()) == ({"web"}, set())
        assert host.show("web").in_force["limits"]["tx_bps"] == 50_000_000
        lab.wait_gone("web")
        there.virsh("destroy", "web")
        assert host.names() == set()


@pytest.mark.lab
@pytest.mark.abreast
def test_an_interface_is_detached(lab: Lab) -> None:
    """The guest gives the interface up; its contract goes, the other stays."""
    asked = contracts(
        [f"mac='{MAC}' name='web' tx.max='50mbit'", f"mac='{OTHER}' name='more' rx.max='5mbit'"]
    )
    devices = (bridged(MAC), bridged(OTHER))
    folder = lab.libvirt.folder / "guest"
    with DomainGuest(folder, libvirt=lab.libvirt, name="web", devices=devices, metadata=asked) as guest:
        assert lab.host.names() == {"web", "more"}
        guest.ready()
        lab.libvirt.virsh("detach-device", "web", lab.libvirt.xml(bridged(OTHER), "device"))
        lab.wait_gone("more")
        assert lab.limit("web") == (50_000_000, None)
        assert guest.run("ls /sys/class/net").split() == ["eth0", "lo"]


@pytest.mark.lab
def test_a_guests_rate(lab: Lab) -> None:
    """TCP of a libvirt guest keeps the limits of its metadata in both directions, in every window."""
    asked = contracts([f"mac='{MAC}' name='web' tx.max='50mbit' rx.max='20mbit'"])
    folder = lab.libvirt.folder / "rate"
    with DomainGuest(
        folder, libvirt=lab.libvirt, name="web", devices=(bridged(MAC),), metadata=asked
    ) as guest:
        lab.libvirt.run("ip", "addr", "add", "10.11.0.1/24", "dev", "br0")
        guest.address("10.11.0.2/24")
        server = Process(lab.libvirt.enter("iperf3", "--server", "--forceflush"), folder / "iperf3.log")
        server.wait_for("iperf3", lambda: "listening" in server.output())
        tap = lab.libvirt.virsh("domiflist", "web").split()[-5]
        with server:
            # Counters behind each limit: the bridge's of what the guest sent, the tap's of what it receives.
            for what, rate, netdev, counter, options in (
                ("tx.max", 50e6, "br0", "rx", ""),
                ("rx.max", 20e6, tap, "tx", "--reverse"),
            ):
                guest.run(f"iperf3 -c 10.11.0.1 -t 60 {options} >/dev/null 2>&1 &")
                counted = partial(lab.libvirt.counted, netdev, counter)
                Rate(what, counted, Limit(rate, DEFAULT_BURST)).reaches(0.85, 2)
                guest.run("killall iperf3; while pidof iperf3 >/dev/null; do sleep 0.1; done")


@pytest.mark.abreast
def test_a_crash_removes_the_contract(lab: Lab) -> None:
    """QEMU killed; libvirt calls the hook."""
    lab.start("web", bridged(MAC), asked=f"mac='{MAC}' name='web' tx.max='50mbit'")
    lab.libvirt.crash("web")
    lab.wait_gone("web")
    assert "tidegate-tx" not in lab.libvirt.run("ip", "link")


@pytest.mark.abreast
def test_a_vhostuser_interface_gets_a_port(lab: Lab) -> None:
    """The socket is there when QEMU connects to it."""
    socket = lab.host.folder / "web.sock"
    memory = "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>"
    lab.start("web", vhost_user(MAC, socket), asked=f"mac='{MAC}' name='web' segment='42'", more=memory)
    wait_for("QEMU to connect", lambda: lab.host.show("web").connection in ("connected", "up"))
    assert lab.host.show("web").in_force["segment"] == 42
    lab.libvirt.virsh("destroy", "web")
    assert "web" not in lab.host.names()


@pytest.mark.abreast
def test_zero_copy_is_refused_where_pages_may_be_missing(lab: Lab) -> None:
    """Virsh says which element is in the way, of XML as libvirt completes it."""
    asked = f"mac='{MAC}' name='web' segment='42' transport='rdma' zero-copy='true'"
    port = vhost_user(MAC, lab.host.folder / "web.sock")
    said = lab.refused("web", port, asked=asked)
    assert "neither memfd nor huge pages: write <source type='memfd'/>" in said
    backing = "<source type='memfd'/><access mode='shared'/><allocation mode='immediate'/>"
    memory = f"<memoryBacking>{backing}</memoryBacking>"
    text = domain("web", port, metadata=contracts([asked]), more=memory)
    assert "<memballoon model='none'/>" in text
    for balloon, why in [
        ("", "a balloon takes pages"),
        ("<memballoon model='virtio' freePageReporting='on'/>", "free page reporting takes pages"),
    ]:
        with pytest.raises(LibvirtError) as refused:
            lab.libvirt.create(text.replace("<memballoon model='none'/>", balloon))
        assert why in str(refused.value), why
    # The agent's own refusal comes last: what the domain says is right.
    with pytest.raises(LibvirtError) as refused:
        lab.libvirt.create(text)
    assert "no uplink carries segment 42" in str(refused.value)
    assert lab.host.names() == set()


@pytest.mark.abreast
def test_saved_and_restored(lab: Lab) -> None:
    """As with a migration, the domain that comes in has its contract from the start."""
    lab.start("web", bridged(MAC), asked=f"mac='{MAC}' name='web' tx.max='50mbit'")
    image = lab.libvirt.folder / "web.save"
    lab.libvirt.virsh("save", "web", image)
    assert "web" not in lab.host.names()
    lab.libvirt.virsh("restore", image)
    assert lab.limit("web") == (50_000_000, None)
    lab.libvirt.virsh("destroy", "web")


@pytest.mark.abreast
def test_without_an_agent(lab: Lab) -> None:
    """No contract in force, no start; who has none starts; who runs goes on; who ended leaves nothing."""
    asked = f"mac='{MAC}' name='web' tx.max='50mbit'"
    lab.start("web", bridged(MAC), asked=asked)
    lab.host.kill_agent()
    try:
        assert "cannot reach the agent" in lab.refused("other", bridged(OTHER), asked=f"mac='{OTHER}'")
        lab.start("plain", bridged(OTHER))
        # At `reconnect` a hook that fails would end the VM.
        lab.libvirt.restart()
        wait_for("the domains", lambda: lab.libvirt.domains() == {"web", "plain"})
        lab.libvirt.virsh("destroy", "plain")
        lab.libvirt.virsh("destroy", "web")
    finally:
        lab.host.start_agent()
    # What the ended domain left is in the way of another one of its MAC, and goes for it.
    lab.start("next", bridged(MAC), asked=asked)
    assert lab.host.show("web").document["owner"] == "libvirt:next"
    lab.libvirt.virsh("destroy", "next")


def _silent(listener: socket.socket, stop: threading.Event) -> None:
    """Accept, and never answer."""
    connections = []
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            connections.append(listener.accept()[0])


def _dribbling(listener: socket.socket, stop: threading.Event) -> None:
    """Answer a byte a second."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n"
    connections: list[tuple[socket.socket, Iterator[int]]] = []
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            connection, _ = listener.accept()
            connection.settimeout(1)
            connection.recv(65536)
            connections.append((connection, iter(answer)))
        for connection, rest in connections:
            with contextlib.suppress(OSError):
                connection.send(bytes([next(rest)]))


def _full(listener: socket.socket, stop: threading.Event) -> None:
    """Accept no connection, with as many waiting as may."""
    waiting = []
    while not stop.is_set():
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            client.connect(listener.getsockname())
            waiting.append(client)
            continue
        stop.wait(0.1)


@contextlib.contextmanager
def hung(lab: Lab, how: str) -> Iterator[None]:
    """An agent that hangs in the place of the lab's, or the lab's own, stopped."""
    if how == "stopped":
        with stopped(lab.host.agent):
            yield
        return
    aside = lab.host.api.with_suffix(".aside")
    lab.host.api.rename(aside)
    stop = threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(lab.host.api))
        listener.listen(0)
        listener.settimeout(1)
        work = {"silent": _silent, "dribbling": _dribbling, "full": _full}[how]
        thread = threading.Thread(target=work, args=(listener, stop))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            aside.rename(lab.host.api)


def _seconds(work: Callable[[], object]) -> float:
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


# To the hook, one that is stopped is one that is silent: connected to, and without an answer.
NIGHTLY = [pytest.param(how, marks=pytest.mark.nightly) for how in ("silent", "dribbling", "full")]


@pytest.mark.parametrize("how", ["stopped", *NIGHTLY])
def test_an_agent_that_hangs_delays_virsh_by_five_seconds_at_most(lab: Lab, how: str) -> None:
    """A domain that starts is refused, one that runs is destroyed, one without contracts does not wait."""
    asked = f"mac='{MAC}' name='web' tx.max='50mbit'"
    lab.start("web", bridged(MAC), asked=asked)
    refused = partial(lab.refused, "other", bridged(OTHER), asked=f"mac='{OTHER}'")
    lab.host.kill_agent()
    try:
        at_once = _seconds(refused)
    finally:
        lab.host.start_agent()
    with hung(lab, how):
        said = ""

        def start() -> None:
            nonlocal said
            said = refused()

        took = _seconds(start)
        assert took < at_once + 5 + SLACK
        assert "does not answer within 3.5s" in said
        assert _seconds(partial(lab.libvirt.virsh, "destroy", "web")) < 5 + SLACK
        assert _seconds(partial(lab.start, "plain", bridged(OTHER))) < 5 + SLACK
    lab.libvirt.virsh("destroy", "plain")
    # What its hook could not remove, `watch` does.
    lab.wait_gone("web")


@pytest.mark.abreast
def test_libvirtd_restarts(lab: Lab) -> None:
    """Domains and contracts stay; what was lost meanwhile is there again."""
    lab.start("web", bridged(MAC), asked=f"mac='{MAC}' name='web' tx.max='50mbit'")
    lab.libvirt.restart()
    wait_for("the domain", lambda: lab.libvirt.domains() == {"web"})
    assert lab.limit("web") == (50_000_000, None)
    lab.libvirt.virsh("destroy", "web")
    assert "web" not in lab.host.names()


@pytest.mark.abreast
def test_a_hook_that_only_advises(lab: Lab) -> None:
    """`--advisory`: the domain starts; its contract comes when it can."""
    install(lab.libvirt.hooks, lab.host.api, "--advisory")
    lab.host.kill_agent()
    try:
        lab.start("web", bridged(MAC), asked=f"mac='{MAC}' name='web' tx.max='50mbit'")
    finally:
        lab.host.start_agent()
        install(lab.libvirt.hooks, lab.host.api)
    wait_for("the contract", partial(_is_in_force, lab, "web"))
    lab.libvirt.virsh("destroy", "web")


def _is_in_force(lab: Lab, name: str) -> bool:
    return name in lab.host.names() and lab.limit(name) != (None, None)


def page(language: str) -> list[str]:
    """The blocks of docs/libvirt.md in this language."""
    text = (ROOT / "docs/libvirt.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.abreast
def test_the_pages_import(tmp_path: Path) -> None:
    """What the page shows of `import` is what it prints, and the element says the same as the whole."""
    domain_xml, *_ = page("xml")
    (tmp_path / "web1.xml").write_text(domain_xml)
    shown = 0
    for text in page("console"):
        command, _, output = text.partition("\n")
        words = command.removeprefix("$ tidegate ").split()
        assert (
            subprocess.run([BINARY, *words], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
            == output
        )
        shown += 1
    assert shown == 2


@pytest.mark.abreast
def test_the_pages_metadata(lab: Lab) -> None:
    """The page's contracts, and its command that changes them, on a domain that this host can run."""
    domain_xml, *_ = page("xml")
    metadata = re.search(r"<metadata>(.*)</metadata>", domain_xml, re.DOTALL)
    assert metadata
    lab.libvirt.virsh(
        "define", lab.libvirt.xml(domain("web1", bridged("52:54:00:00:00:01"), metadata=metadata[1]))
    )
    try:
        lab.libvirt.virsh("start", "web1")
        assert lab.limit("web1") == (500_000_000, 1_000_000_000)
        (command,) = [text for text in page("sh") if "virsh metadata" in text]
        program, *words = shlex.split(command.replace("\\\n", " "))
        assert program == "virsh"
        lab.libvirt.virsh(*words)
        wait_for("the new limit", lambda: lab.limit("web1") == (300_000_000, None))
        lab.libvirt.virsh("destroy", "web1")
    finally:
        lab.libvirt.virsh("undefine", "web1")


@pytest.mark.abreast
def test_hooks_of_other_programs_stay(tmp_path: Path) -> None:
    """A hook of another program is not overwritten, not removed."""
    path = tmp_path / "qemu.d" / "tidegate"
    assert "is installed" in install(tmp_path, Path("/run/tidegate/api.sock"))
    assert path.stat().st_mode & 0o777 == 0o755
    assert "is up to date" in install(tmp_path, Path("/run/tidegate/api.sock"), "--advisory")
    assert " libvirt hook --advisory -- " in path.read_text()
    assert "is removed" in tidegate("libvirt", "remove-hook", "--hooks-dir", tmp_path)
    assert "nothing to remove" in tidegate("libvirt", "remove-hook", "--hooks-dir", tmp_path)
    path.write_text("#!/bin/sh\n# mine\n")
    host = Path("/nonexistent")
    for command in ("install-hook", "remove-hook"):
        done = subprocess.run(
            [BINARY, "--api", host, "libvirt", command, "--hooks-dir", tmp_path],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert "belongs to another program" in done.stderr
    assert path.read_text() == "#!/bin/sh\n# mine\n"
