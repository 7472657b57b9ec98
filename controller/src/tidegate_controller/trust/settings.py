"""What the operator wants of certificates and keys.

```text
 config/tls.py ─▶ TrustConfig ─▶ Trust
```
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidegate_controller.trust.ring import Times
from tidegate_controller.trust.roll import Roll

FOLDER = "/etc/tidegate-controller"
STORE = "/var/lib/tidegate-controller/trust.db"


@dataclass(frozen=True)
class TrustConfig:
    """Files, times, and who is in the configuration."""

    folder: Path
    """What is not named is here."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """By key; those that are named."""
    lifetime: float = 30 * 86400.0
    """s of a host's certificate."""
    times: Times = field(default_factory=Times)
    store: Path = Path(STORE)
    openflow: bool = False
    """Whether switches connect by TLS."""
    roll: Roll = field(default_factory=Roll)
