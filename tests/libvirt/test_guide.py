"""The guide's own lines, as written: a VM started with them is on its port."""

import re
import shlex
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lab.guest import Guest
from lab.host import Host
from lab.initramfs import ROOT
from lab.namespaces import can_make_namespaces
from lab.need import need
from lab.process import wait_for

SOCKET = "/run/tidegate/vm/web1.sock"


def block(language: str) -> str:
    """The guide's code block of this language that speaks of the socket."""
    guide = (ROOT / "docs/guide.md").read_text()
    for text in re.findall(rf"^```{language}\n(.*?)^```", guide, re.MULTILINE | re.DOTALL):
        if SOCKET in text:
            return str(text)
    raise AssertionError(f"the guide has no {language} block with {SOCKET}")


def qemu_arguments(socket: Path) -> list[str]:
    """The documented line, but for what the lab brings itself: acceleration, processor, disk, socket path."""
    program, *words = shlex.split(block("qemu").replace("\\\n", " "))
    assert program == "qemu-system-x86_64"
    own = {"-enable-kvm": 1, "-cpu": 2, "-drive": 2}
    arguments = []
    while words:
        for _ in range(own.get(words[0], 0)):
            words.pop(0)
        if words and words[0] not in own:
            arguments.append(words.pop(0))
    return [a.replace(SOCKET, str(socket)) for a in arguments]


@pytest.mark.lab
def test_qemu_line(host: Host) -> None:
    """The contract and the QEMU line of the guide: the VM's port comes up and its frames are counted."""
    socket = host.folder / "web1.sock"
    host.apply(block("toml").replace(SOCKET, str(socket)))
    with Guest(host.folder / "guest", machine=qemu_arguments(socket)) as guest:
        host.wait_up("web1")
        assert "52:54:00:00:02:01" in guest.run("ip link show eth0")
        guest.address("10.0.0.1/24")
        guest.try_run("ping -c 1 -W 1 10.0.0.2")
        wait_for("the VM's frames", lambda: host.show("web1").tx_frames > 0)


def contracts_in_order() -> list[str]:
    """README's and the guide's contracts, in the order in which a reader meets them."""
    pages = (ROOT / "README.md", ROOT / "docs/guide.md")
    return [
        str(text)
        for page in pages
        for text in re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    ]


def on_this_host(text: str, folder: Path) -> str:
    """The contract with sockets in `folder`, and namespaces and a function that are not here replaced."""
    text = text.replace("/run/tidegate/vm", str(folder))
    text = re.sub(r'tap = "[^"]+", netns = "/run/netns/([^"]+)"', r'tap = "\1"', text)
    # No NIC is needed to see that the name and the MAC are free; a port of the switch has no uplink.
    text = re.sub(r'vf = "[^"]+"', f'vhost-user = "{folder}/vf.sock"', text)
    return text.replace(', min = "500mbit"', "")


def test_examples_collide_nowhere(host: Host) -> None:
    """README's and the guide's contracts, applied one after another, change none of those before."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    found = contracts_in_order()
    assert len(found) > 4
    for text in found:
        before, named = host.names(), set(tomllib.loads(text)["vnic"])
        assert before & named == set()
        host.apply(on_this_host(text, host.folder))
        assert host.names() == before | named


def test_libvirt_xml_says_the_same() -> None:
    """The domain names the socket, MAC and shared memory that the QEMU line names."""
    domain = ElementTree.fromstring(block("xml"))
    line = block("qemu")
    mac = domain.find("devices/interface/mac")
    source = domain.find("devices/interface/source")
    access = domain.find("memoryBacking/access")
    backing = domain.find("memoryBacking/source")
    assert mac is not None
    assert source is not None
    assert access is not None
    assert backing is not None
    assert f"mac={mac.get('address')}" in line
    assert f"path={source.get('path')}," in line
    assert (backing.get("type"), access.get("mode")) == ("memfd", "shared")
    assert "memory-backend-memfd" in line
    assert "share=on" in line
