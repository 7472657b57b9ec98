"""Who is who, and who gets which key: the controller's certificates, enrolment, segment keys.

```text
 folder ─▶ Authority ─▶ Enrolment ─▶ certificates of hosts
   │  └──▶ Contexts ──▶ API, switches, databases              Trust joins them; `reload` on SIGHUP
   └─────▶ Keyring ◀─▶ Store (sealed) ──▶ keys of segments
```
"""

from tidegate_controller.trust.refusal import Code, Refusal
from tidegate_controller.trust.roll import Member, Proof, Role, Roll
from tidegate_controller.trust.trust import Trust

__all__ = ["Code", "Member", "Proof", "Refusal", "Role", "Roll", "Trust"]
