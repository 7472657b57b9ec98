"""From JSON that is checked to the words of `model`.

```text
 body: as its schema says ─▶ Registration, PathRequest
```
"""

import ipaddress
from typing import Any

from tidegate_controller.api.problem import Code, Problem
from tidegate_controller.model.hosts import Arrival, PlainNic, Registration, Uplink, Vnic
from tidegate_controller.model.paths import EthernetKey, FlowKey, Key, PathRequest


def registration(body: dict[str, Any]) -> Registration:
    """Reads an announcement. Raises `Problem` for an address that is none."""
    uplinks = tuple(
        Uplink(one["name"], _address(one["address"]), one["port"], one["arrival_budget"])
        for one in body["uplinks"]
        if one["address"] is not None
    )
    plain = tuple(_plain_nic(one) for one in body["uplinks"] if one["address"] is None)
    arrivals = tuple(Arrival(one["remote"], one.get("refused")) for one in body["arrivals"])
    vnics = tuple(_vnic(one) for one in body["vnics"])
    return Registration(body["run"], uplinks, vnics, arrivals, body.get("view", 0), plain)


def _plain_nic(one: dict[str, Any]) -> PlainNic:
    return PlainNic(one["name"], tuple(one.get("vlans", ())))


def _vnic(one: dict[str, Any]) -> Vnic:
    return Vnic(
        one["name"],
        one["mac"],
        one["segment"],
        tuple(_address(address) for address in one["addresses"]),
        one.get("rate"),
        one.get("burst"),
        one.get("deadline"),
        tuple(one["to"]),
    )


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise Problem(Code.INVALID, f"{text!a} is no IP address") from None


def path_request(name: str, body: dict[str, Any], lasting: bool) -> PathRequest:
    """Reads a request for a path."""
    return PathRequest(
        name,
        body["source"],
        body["target"],
        _key(body["key"]),
        body["dscp"],
        body["rate"],
        body["burst"],
        body["smallest_frame"],
        body["largest_frame"],
        body["budget"],
        lasting,
    )


def _key(body: dict[str, Any]) -> Key:
    return EthernetKey(**body) if "vlan" in body else FlowKey(**body)
