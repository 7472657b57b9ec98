"""What has to hold before a host's request for a path reaches the core.

```text
 name, PathRequest ─▶ the vNIC and the addresses are the host's, the remote is where it says,
                      the far host has admitted the sender, the request is within
                      what that is about ─▶ sound                        else NotYet, NotYours, No, Unsound
```

Over a plain NIC nothing judges the arrival, and the far host promises nothing: its word is that it announces
the receiver and the VLAN.

An operator's request is only read: hosts need not be registered, and the path lasts until it is released.
"""

import ipaddress
from collections.abc import Iterable

from tidegate_controller.decide.hosts import Registry
from tidegate_controller.decide.promised import beyond
from tidegate_controller.model.hosts import Allowed
from tidegate_controller.model.paths import EthernetKey, PathRequest


class NotWanted(Exception):
    """The request does not reach the core."""


class Unsound(NotWanted):
    """It contradicts itself."""


class NotYours(NotWanted):
    """The host may not ask for this."""


class NotYet(NotWanted):
    """Something is missing that may come: ask again."""


class No(NotWanted):
    """The far host has not the room, or was not told of so much."""


def sound(name: str, vnic: str, remote: str, request: PathRequest) -> None:
    """Whether a request is one. Raises `Unsound`."""
    if name != f"{vnic}>{remote}":
        raise Unsound(f"the path is {name[:200]}; its vNIC and remote make it {vnic}>{remote}")
    if request.smallest_frame > request.largest_frame:
        text = f"its smallest frame has {request.smallest_frame} bytes, its largest {request.largest_frame}"
        raise Unsound(text)
    key = request.key
    if isinstance(key, EthernetKey):
        _sound_ethernet(key, request.dscp)
        return
    for address in (key.source, key.target):
        try:
            same = str(ipaddress.ip_address(address)) == address
        except ValueError:
            raise Unsound(f"{address[:60]!a} is no IP address") from None
        if not same:
            raise Unsound(f"{address} is to be written as {ipaddress.ip_address(address)} (RFC 5952)")


def _sound_ethernet(key: EthernetKey, dscp: int) -> None:
    if dscp:
        raise Unsound(f"its mark is {dscp}; frames of a plain NIC are marked by `priority`, so `dscp` is 0")
    if key.source_mac == key.target_mac:
        raise Unsound(f"MAC {key.source_mac} is that of both ends")
    for mac in (key.source_mac, key.target_mac):
        if int(mac[:2], 16) & 1:
            raise Unsound(f"MAC {mac} is one of a group; a path leads from one vNIC to one")


def within_quota(allowed: Allowed, others: Iterable[PathRequest], request: PathRequest) -> None:
    """Whether a host may have this path beside those that it has, or that are on their way. Raises `No`."""
    there = [one for one in others if one.source == request.source and one.name != request.name]
    if len(there) >= allowed.most_paths:
        raise No(
            f"host {request.source} has {len(there)} paths; `paths` in its table of the configuration "
            f"is {allowed.most_paths}"
        )
    rate = sum(one.rate for one in there) + request.rate
    if allowed.most_rate is not None and rate > allowed.most_rate:
        raise No(
            f"the paths of host {request.source} would have {rate} bit/s; `rate` in its table of the "
            f"configuration is {allowed.most_rate}"
        )


def of_host(registry: Registry, host: str, vnic: str, remote: str, request: PathRequest) -> None:
    """Whether a host may ask for this now. Raises `NotYours`, `NotYet`, `No`."""
    if request.source != host:
        raise NotYours(f"a path from host {request.source} is asked for by host {host}")
    if why := registry.why_not(host, vnic):
        raise NotYours(f"vNIC {vnic} does not count at host {host}: {why}")
    if isinstance(request.key, EthernetKey):
        _behind_plain_nics(registry, host, vnic, remote, request, request.key)
        return
    uplink = registry.uplink(host)
    if uplink is None or uplink.address != request.key.source:
        found = uplink.address if uplink else "no uplink with the address of the configuration"
        raise NotYours(f"its frames leave from {request.key.source}; host {host} has {found}")
    own, there = registry.holder(vnic), registry.holder(remote)
    far = registry.uplink(request.target)
    if own is None or there is None or there[0] != request.target or far is None:
        where = f"is at host {there[0]}" if there else "is announced by no host"
        raise NotYet(f"vNIC {remote} {where}, not by a host {request.target} with an uplink that counts")
    if own[1].segment != there[1].segment:
        raise No(f"vNIC {vnic} is in segment {own[1].segment}, vNIC {remote} in {there[1].segment}")
    if (far.address, far.port) != (request.key.target, request.key.target_port):
        told = f"{request.key.target} port {request.key.target_port}"
        raise NotYet(f"its frames go to {told}; host {request.target} has {far.address} port {far.port}")
    if why := beyond(own[1], remote, request, far.arrival_budget):
        raise No(why[:2000])
    arrival = registry.arrival(request.target, vnic)
    if arrival is None:
        raise NotYet(f"host {request.target} has not admitted vNIC {vnic} yet, as it is announced now")
    if arrival.refused is not None:
        raise No(f"host {request.target} refuses vNIC {vnic}: {arrival.refused}"[:2000])


def _behind_plain_nics(
    registry: Registry, host: str, vnic: str, remote: str, request: PathRequest, key: EthernetKey
) -> None:
    """The same between plain NICs; `vnic` counts at `host`. Raises `NotYours`, `NotYet`, `No`."""
    own, there = registry.holder(vnic), registry.holder(remote)
    assert own is not None
    if key.vlan not in registry.vlans(host):
        raise NotYours(f"its frames have VLAN {key.vlan}; host {host} has no plain NIC with it that counts")
    if (own[1].segment, own[1].mac) != (key.vlan, key.source_mac):
        frames = f"its frames have VLAN {key.vlan} and come from {key.source_mac}"
        raise NotYours(f"{frames}; vNIC {vnic} has MAC {own[1].mac} in segment {own[1].segment}")
    if there is None or there[0] != request.target or key.vlan not in registry.vlans(request.target):
        where = f"is at host {there[0]}" if there else "is announced by no host"
        raise NotYet(
            f"vNIC {remote} {where}, not behind a plain NIC of a host {request.target} with VLAN {key.vlan}"
        )
    if there[1].segment != key.vlan:
        raise No(f"vNIC {vnic} is in segment {key.vlan}, vNIC {remote} in {there[1].segment}")
    if there[1].mac != key.target_mac:
        raise NotYet(f"its frames go to {key.target_mac}; vNIC {remote} has MAC {there[1].mac}")
    if why := beyond(own[1], remote, request, 0):
        raise No(why[:2000])
