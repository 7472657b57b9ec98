"""Which switch a certificate stands for.

```text
 datapath id ─▶ name in the file ═ CN of the certificate?   yes: the name      no: SessionLost says both
 database ─▶ switches in the file ∋ CN?
```

With our authority, OU has to be `switch`: a host with a switch's name is no switch. Another authority signs
for switches alone, and has its own units. `ovs-pki` puts ` id:UUID` behind a name; that does not count.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from tidegate_controller.trust.refusal import Refusal
from tidegate_controller.trust.roll import Role, Roll, names_of

Certificate = Mapping[str, Any] | None


class Switches:
    """Checks names. `ours`: whether our authority signs for switches."""

    def __init__(self, roll: Callable[[], Roll], ours: Callable[[], bool]) -> None:
        self._roll, self._ours = roll, ours

    def fault(self, certificate: Certificate, expected: Collection[str]) -> str | None:
        """Returns why a certificate is of none of these switches, or None."""
        try:
            name, unit, serial = names_of(certificate)
        except Refusal as problem:
            return problem.message
        name = name.partition(" id:")[0]
        if serial in self._roll().revoked:
            return f"the certificate {serial:x} of {name[:60]!r} is revoked"
        if self._ours() and unit != Role.SWITCH:
            return (
                f"the certificate of {name[:60]!r} is that of a {unit[:60] or 'stranger'}, not of a switch:"
                f" `tidegate-controller certificate {min(expected, default='NAME')}` makes one"
            )
        if name not in expected:
            names = ", ".join(sorted(expected)[:5])
            return f"the certificate is that of {name[:60]!r}; {names} was expected"
        return None
