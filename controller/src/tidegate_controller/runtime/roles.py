"""The role of this controller at a switch, where controllers are several (OpenFlow 1.3, 6.3.4 and 6.3.5).

```text
 leads:   MASTER, generation = term ─▶ given: its work begins     ─▶ stale: a later leader was there: lost
 standby: SLAVE, generation = term of the leader that it sees     ─▶ stale: it will see the later one
```

A switch with a MASTER takes changes from that one alone, and tells frames to that one alone. A leader that
was replaced is SLAVE there from that moment on, and older terms are refused: so it changes nothing, whatever
it believes.
"""

import logging

from tidegate_controller.openflow.requests import RequestRefused
from tidegate_controller.openflow.session import Role, Session, SessionLost

log = logging.getLogger(__name__)


async def assume(name: str, session: Session, leads: bool, term: int) -> bool:
    """Asks a switch for the role; returns whether it was given."""
    if not term:
        # No leader is known yet: the switch sees an EQUAL, which asks for nothing.
        return False
    role = Role.MASTER if leads else Role.SLAVE
    try:
        given = await session.role(role, term)
    except SessionLost:
        return False
    except RequestRefused as refused:
        if not leads:
            log.info("switch %s: not its slave in term %d: %s", name, term, refused)
            return False
        log.error(
            "switch %s does not take this controller as its master in term %d: %s. A controller with a later"
            " term was there. If the network's etcd was made anew, terms began anew, too: restart the switch",
            name,
            term,
            refused,
        )
        session.lose(f"role refused: {refused}")
        return False
    if given != role:
        log.error("switch %s gave the role %s instead of %s", name, given.name, role.name)
        session.lose(f"the role {given.name} was given instead of {role.name}")
        return False
    return True
