"""The contenders: each place, and its special settings."""

from dataclasses import dataclass

from scenes.queueing.places import KERNEL_PLACE, InGuest, Kernel, Place, Synthetic, Tap, Yardstick


@dataclass(frozen=True)
class Way:
    """One contender: a place, and its special settings."""

    place: type[Place]
    """Contenders of one place share it."""
    about: str
    queueing: str = ""
    """A further line of the contract."""
    qdisc: str = ""
    """Of the guest."""
    shaper: str = ""
    """Of the yardstick."""
    spare: int = 0
    """Descriptors that the flows of a synthetic guest leave free in its ring."""
    congestion: str = "cubic"
    ecn: bool = False

    @property
    def asked(self) -> bool:
        """Whether it is one of which short queues are asked: not where a probe finds no free descriptor."""
        full = self.place is Synthetic and not self.spare
        return not self.queueing and not full and self.shaper in ("", KERNEL_PLACE)


FIFO_LINE = 'queueing = "fifo"'
CAKE = "cake"
WAYS = {
    "tap": Way(Tap, "tap of the switch"),
    "tap-fifo": Way(Tap, 'tap, queueing = "fifo"', queueing=FIFO_LINE),
    "kernel": Way(Kernel, "kernel place, veth"),
    "kernel-ecn": Way(Kernel, "kernel place, veth, TCP with ECN", ecn=True),
    "guest-pfifo_fast": Way(InGuest, "guest, pfifo_fast", qdisc="pfifo_fast"),
    "guest-fq": Way(InGuest, "guest, fq", qdisc="fq"),
    "guest-fq_codel": Way(InGuest, "guest, fq_codel", qdisc="fq_codel"),
    "guest-ecn": Way(InGuest, "guest, pfifo_fast, ECN", qdisc="pfifo_fast", ecn=True),
    "guest-bbr": Way(InGuest, "guest, fq, BBR", qdisc="fq", congestion="bbr"),
    "guest-fifo": Way(
        InGuest, 'guest, pfifo_fast, queueing = "fifo"', queueing=FIFO_LINE, qdisc="pfifo_fast"
    ),
    "synthetic": Way(Synthetic, "synthetic guest, its ring not full", spare=8),
    "synthetic-full": Way(Synthetic, "synthetic guest, its ring full"),
    "kernel-cake": Way(Yardstick, "kernel place where the kernel has cake", shaper=KERNEL_PLACE),
    "htb+fq_codel": Way(Yardstick, "yardstick: HTB + fq_codel", shaper="htb"),
    CAKE: Way(Yardstick, "yardstick: cake", shaper="cake"),
}
"""In the order of the tables."""
