"""Who is who, and who gets which key: the controller's certificates, enrolment, segment keys.

```text
 folder ─▶ Authority ─▶ Enrolment ─▶ certificates of hosts
   │  └──▶ Contexts ──▶ API, switches, databases              Trust joins them; `reload` on SIGHUP
   └─────▶ Keyring ◀─▶ Store (sealed) ──▶ keys of segments
```
"""

from tidegate_controller.trust.problem import Code, Problem
from tidegate_controller.trust.roll import Identity, Member, Role, Roll
from tidegate_controller.trust.trust import Trust

__all__ = ["Code", "Identity", "Member", "Problem", "Role", "Roll", "Trust"]
