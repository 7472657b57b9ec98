"""Whether a request is within what its vNIC announces: that is what the far host has admitted.

```text
 Vnic: rate r, burst b, deadline Td, to ─┐
 PathRequest, arrival budget A ──────────┴▶ beyond ─▶ why it is more than was announced; empty: it is not
```

The rule is that of the agent (`crates/contract/src/network_paths.rs`). Of Td, the far host has A, the network
the budget N, so the sender has at most d = Td - N - A, and sends at most b + r d at once. On the wire a frame
of at least 60 bytes has o bytes more: rate and burst are at most (60 + o) / 60 of that. An agent with several
peers has a smaller d, and a smaller burst. A plain NIC adds a VLAN tag alone; no host gives its word for A
there, so it counts as 0.
"""

import ipaddress

from tidegate_controller.model.hosts import Vnic
from tidegate_controller.model.paths import EthernetKey, PathRequest

SMALLEST = 60
"""Bytes of the smallest Ethernet frame without its checksum."""
HEADERS = {4: 14 + 20 + 8 + 8, 6: 14 + 40 + 8 + 8}
"""Bytes of Ethernet, IP, UDP and VXLAN (RFC 7348), by version of IP."""
TAG = 4
"""Bytes of a VLAN tag (IEEE 802.1Q)."""
STAMP = 32
"""Bytes of an agent's stamp."""
SECOND = 1_000_000_000


def beyond(vnic: Vnic, remote: str, request: PathRequest, arrival: int) -> str:
    """Says what of a request is more than `vnic` announces; `arrival` is A in ns. Empty: nothing."""
    who = f"vNIC {vnic.name}"
    if vnic.deadline is None or remote not in vnic.to:
        return f"{who} announces no deadline to {remote}; announce it before its path is asked for"
    if vnic.rate is None or vnic.burst is None:
        return f"{who} announces a deadline without rate and burst; announce them, too"
    added = request.smallest_frame - SMALLEST
    key, around = request.key, "its tag"
    if isinstance(key, EthernetKey):
        most = TAG
    else:
        around = "outer headers and stamp"
        most = HEADERS[ipaddress.ip_address(key.source).version] + STAMP
    if not 0 <= added <= most:
        least = f"its smallest frame has {request.smallest_frame} bytes"
        return f"{least}; with {around}, {SMALLEST} to {SMALLEST + most} are expected"
    rate = _on_wire(vnic.rate, added)
    here = vnic.deadline - request.budget - arrival
    bits = vnic.burst * 8 + -(-vnic.rate * max(0, here) // SECOND)
    burst = -(-_on_wire(bits, added) // 8)
    parts = f"{request.budget} ns for the network and {arrival} ns for the far host"
    checks = (
        (
            request.largest_frame > vnic.burst + added,
            f"its largest frame has {request.largest_frame} bytes; {who} announces a burst of {vnic.burst}",
        ),
        (
            request.rate > rate,
            f"its rate is {request.rate} bit/s; {who} announces {vnic.rate}, that is {rate} on the wire",
        ),
        (here < 0, f"{parts} are more than the deadline of {vnic.deadline} ns that {who} announces"),
        (
            request.burst > burst,
            f"its burst is {request.burst} bytes; by the announcement of {who} at most {burst} leave at once",
        ),
    )
    return next((why for is_more, why in checks if is_more), "")


def _on_wire(data: int, added: int) -> int:
    return -(-data * (SMALLEST + added) // SMALLEST)
