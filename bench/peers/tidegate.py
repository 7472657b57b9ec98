"""Tidegate itself: a switch and an agent of its own, everything of a contract on."""

from pathlib import Path

from lab.host import Host, vhost_user_vnic

from .base import GUEST_A, GUEST_B, Peer

ENVELOPE = "400gbit"
"""The limit of both guests: a real token bucket that is never empty."""


def contracts(folder: Path, *, bridge: bool = False) -> str:
    """A, B, and a real-time vNIC towards B, so that EDF and its histograms are in force at B's egress.

    A may send from its own address only. With `bridge`, B may use any, and they are learned.
    """
    limits = (f'tx = {{ max = "{ENVELOPE}" }}', f'rx = {{ max = "{ENVELOPE}" }}')
    any_mac = ('allowed = { macs = "any" }',) if bridge else ()
    return (
        vhost_user_vnic("a", folder / "a.sock", GUEST_A, *limits)
        + vhost_user_vnic("b", folder / "b.sock", GUEST_B, *limits, *any_mac)
        + vhost_user_vnic(
            "voice",
            folder / "voice.sock",
            "52:54:00:00:0c:01",
            'tx = { max = "10mbit", burst = "4kB" }',
            'rx = { max = "10mbit" }',
            'deadline = "1ms"',
            'to = ["b"]',
        )
    )


class Tidegate(Peer):
    """`tidegate switch --cpus CPU` and `tidegate agent`."""

    name = "tidegate"

    def __init__(self, folder: Path, cpu: int) -> None:
        self.host = Host(folder, switch_options=("--cpus", str(cpu)))
        try:
            self.host.apply(contracts(folder))
        except BaseException:
            self.host.stop()
            raise
        self.process = self.host.switch
        self.sockets = (folder / "a.sock", folder / "b.sock")

    def connected(self) -> None:
        """Wait until both vNICs are up."""
        self.host.wait_up("a", "b")

    def forwarding_thread(self) -> int:
        """The worker."""
        return self.thread_named("worker")

    def pause(self) -> None:
        """Does nothing: an idle switch sleeps, and the agent would give up a paused one."""

    def resume(self) -> None:
        """Does nothing, for the same reason."""

    def bridge_behind_b(self, on: bool) -> None:
        """Whether guest B is a bridge with many addresses behind it."""
        self.host.apply(contracts(self.host.folder, bridge=on))

    def stop(self) -> None:
        """End switch and agent."""
        self.host.stop()
