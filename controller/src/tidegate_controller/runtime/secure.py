"""Which connections of the configuration are encrypted, and whose certificates count at them.

```text
 Config, Trust ─▶ Secure ─▶ contexts of Server and Database; name, fault: who is at the other end
                       └─▶ log: what is plain, and what that means
```
"""

import ipaddress
import logging
import ssl
from collections.abc import Collection, Mapping
from typing import Any

from tidegate_controller.config import Config
from tidegate_controller.openflow.session import SessionLost
from tidegate_controller.ovsdb.connection import Certificate, Fault, split_address
from tidegate_controller.trust import Trust

log = logging.getLogger(__name__)


class Secure:
    """Without `trust`, all is plain."""

    def __init__(self, config: Config, trust: Trust | None) -> None:
        self._names, self._trust = config.datapaths, trust
        tls = trust is not None and config.trust is not None and config.trust.openflow
        self.switches: ssl.SSLContext | None = trust.contexts.switches if trust is not None and tls else None
        """`None`: switches connect by plain TCP."""
        self.databases: ssl.SSLContext | None = trust.contexts.databases if trust is not None else None
        if self.switches is None and not _is_local(config.listen[0]):
            log.warning(
                "switches connect to %s without TLS: each program of that network can be a switch;"
                " `tls = true` in [openflow] asks for certificates",
                config.listen[0],
            )
        for remote in config.databases:
            if remote.startswith("tcp:") and not _is_local(split_address(remote)[0]):
                log.warning("%s is read and written without TLS; `ssl:` asks for certificates", remote)

    def name(self, datapath: int, certificate: Mapping[str, Any] | None) -> str | None:
        """Returns the switch with a datapath id. Raises `SessionLost` if its certificate is another's."""
        name = self._names.get(datapath)
        if name is None or self.switches is None or self._trust is None:
            return name
        if why := self._trust.switches.fault(certificate, [name]):
            raise SessionLost(f"datapath id {datapath:016x}, switch {name}: {why}")
        return name

    def fault(self, datapaths: Collection[int]) -> Fault:
        """Checks the certificate of the database of these switches."""
        names = [self._names[number] for number in datapaths]

        def check(certificate: Certificate) -> str | None:
            assert self._trust is not None
            return self._trust.switches.fault(certificate, names)

        return check


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
