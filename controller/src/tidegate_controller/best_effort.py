"""Best effort between plain NICs: what is known of hosts, and which tags and rules follow from it.

```text
 PlainNics ─▶ Places ─┐
 topology ────────────┴▶ arrange: tags ─▶ SaveTagged ─▶ Plain: rules, one change after the other
 answers, time ───────────────────────────────────────▶ Plain ─▶ IDLE ─▶ old tags are free, the next change
```
"""

from collections.abc import Mapping

from tidegate_controller import events as ev
from tidegate_controller.decide.layout import arrange, as_kept, of_vlan, to_host
from tidegate_controller.decide.move import Order
from tidegate_controller.decide.phases import Phase
from tidegate_controller.decide.places import Places
from tidegate_controller.decide.plain import Plain
from tidegate_controller.decide.tags import TagsUsedUp
from tidegate_controller.engine import Engine
from tidegate_controller.model.plain import Behind, Tagged
from tidegate_controller.model.topology import Topology


class BestEffort:
    """Of one network."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.places = Places()
        self.plain = Plain()
        self._topology = Topology()
        """What rules follow."""
        self._differs = False
        """Whether hosts have told something else since."""

    @property
    def is_short(self) -> bool:
        """Returns whether tags were missing, so that another look is worth it."""
        return self.plain.layout.short

    def restore(self, topology: Topology, behind: Mapping[str, Behind], tagged: Tagged) -> None:
        """Takes over what was kept. Raises `ValueError`."""
        engine = self._engine
        for one in tagged.hosts:
            engine.tags.claim(one.tag, to_host(one.host))
        for vlan in tagged.vlans:
            engine.tags.claim(vlan.tag, of_vlan(vlan.vlan))
        engine.plain_tags |= tagged.tags
        for host, there in sorted(behind.items()):
            self.places.tell(host, there)
        self._topology = topology
        # What was kept of hosts may be newer than the ids: then there is something to follow.
        self._differs = True
        self.plain.assume(topology, self.places.all(), as_kept(tagged, topology, self.places.all()))

    def told(self, hosts: Mapping[str, Behind]) -> None:
        """Takes what hosts have behind their plain NICs now."""
        changed: set[str] = set()
        for host, behind in sorted(hosts.items()):
            changed |= self.places.tell(host, behind)[0]
        for host in sorted(changed):
            self._engine.effects.append(ev.SaveBehind(host, self.places.behind(host)))
        self._differs = self._differs or bool(changed)

    def follow(self, topology: Topology, again: bool = False) -> list[Order]:
        """Begins to follow hosts and topology if something differs, unless a change is under way.

        `again`: also if nothing differs, since tags may be free now.
        """
        engine, plain = self._engine, self.plain
        if plain.phase != Phase.IDLE:
            return []
        for tag in engine.plain_tags - plain.tags:
            engine.tags.free(tag)
        engine.plain_tags &= plain.tags
        same = topology is self._topology or topology == self._topology
        self._topology = topology
        if same and not self._differs and not again:
            return []
        self._differs = False
        behind = self.places.all()
        if not behind and not plain.tags and not plain.there:
            return []
        vlans = engine.vlans_of_paths()

        def take(owner: str) -> int | None:
            try:
                tag = engine.tags.take(owner, vlans, engine.announced)
            except TagsUsedUp:
                return None
            engine.plain_tags.add(tag)
            return tag

        before = plain.layout.tagged
        layout = arrange(plain.layout, topology, behind, take)
        if layout.tagged != before:
            engine.effects.append(ev.SaveTagged(layout.tagged))
        return plain.follow(topology, behind, layout)
