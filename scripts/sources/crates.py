"""The workspace's crates: their folders, what each depends on, and what it must not depend on."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sources.circles import graph

WIDTH = 110
PREFIX = "tidegate-"


@dataclass(frozen=True, slots=True)
class Package:
    """A crate: its name without `tidegate-`, its folder, and the crates of its normal dependencies."""

    name: str
    folder: Path
    uses: frozenset[str]
    tests_use: frozenset[str]
    """The crates of its dev-dependencies."""

    @property
    def library(self) -> str:
        """The name by which Rust imports it."""
        return "tidegate" if self.name == "tidegate" else f"tidegate_{self.name.replace('-', '_')}"

    @property
    def label(self) -> str:
        """How people call it: `places/nic` for `tidegate-place-nic`."""
        return self.name.replace("place-", "places/", 1) if self.folder.parent.name == "places" else self.name


@dataclass(frozen=True, slots=True)
class Rule:
    """Crates that must not depend on some others, directly or through further crates."""

    crates: tuple[str, ...]
    """Names, or `places/*`."""
    never: tuple[str, ...]
    reason: str


RULES = (
    Rule(
        ("agent",), ("places/*", "switch", "netlink", "ebpf"), "the agent knows places by their trait alone"
    ),
    Rule(
        ("place", "evidence", "contract", "netlink"),
        ("agent", "places/*", "switch"),
        "they are below all places",
    ),
    Rule(("places/*",), ("agent", "places/*"), "places stand side by side"),
    Rule(
        ("agent", "places/*", "switch", "tidegate"),
        ("testkit",),
        "simulations and examples do not ship in the libraries",
    ),
)


def packages(root: Path) -> list[Package]:
    """The crates below `root/crates`, by name."""
    found = []
    for manifest in sorted(root.glob("crates/**/Cargo.toml")):
        if "target" in manifest.relative_to(root).parts:
            continue
        content = tomllib.loads(manifest.read_text())
        tables = [content, *content.get("target", {}).values()]
        found.append(
            Package(
                _short(content["package"]["name"]),
                manifest.parent,
                _own(tables, "dependencies"),
                _own(tables, "dev-dependencies"),
            ),
        )
    names = {package.name for package in found}
    return sorted(
        (Package(p.name, p.folder, p.uses & names - {p.name}, p.tests_use & names - {p.name}) for p in found),
        key=lambda package: package.label,
    )


def _short(name: str) -> str:
    return name.removeprefix(PREFIX)


def _own(tables: list[dict[str, dict[str, object]]], kind: str) -> frozenset[str]:
    names = set()
    for table in tables:
        for key, value in table.get(kind, {}).items():
            name = value.get("package", key) if isinstance(value, dict) else key
            if isinstance(name, str) and (name.startswith(PREFIX) or name == "tidegate"):
                names.add(_short(name))
    return frozenset(names)


def broken_rules(crates: list[Package]) -> list[str]:
    """A line for every pair that a rule forbids, with the way from one to the other."""
    by_name = {crate.name: crate for crate in crates}
    lines = []
    for rule in RULES:
        for crate in crates:
            if not _named(crate, rule.crates):
                continue
            for name, way in sorted(_reached(crate, by_name).items()):
                if name != crate.name and _named(by_name[name], rule.never):
                    steps = " → ".join(by_name[step].label for step in way)
                    lines.append(
                        f"{crate.label} must not depend on {by_name[name].label} ({rule.reason}): {steps}"
                    )
    return lines


def places_seen_by_agent(crates: list[Package]) -> list[str]:
    """The places, and the switch, to which normal dependencies of the agent lead."""
    by_name = {crate.name: crate for crate in crates}
    if "agent" not in by_name:
        return []
    reached = _reached(by_name["agent"], by_name)
    return sorted(by_name[name].label for name in reached if _named(by_name[name], ("places/*", "switch")))


def _named(crate: Package, patterns: tuple[str, ...]) -> bool:
    return crate.label in patterns or ("places/*" in patterns and crate.label.startswith("places/"))


def _reached(crate: Package, by_name: Mapping[str, Package]) -> dict[str, list[str]]:
    """All crates that a crate depends on, each with a shortest way to it."""
    ways = {crate.name: [crate.name]}
    queue = [crate.name]
    for name in queue:
        for used in sorted(by_name[name].uses):
            if used not in ways:
                ways[used] = [*ways[name], used]
                queue.append(used)
    del ways[crate.name]
    return ways


def crate_graph(crates: list[Package]) -> dict[str, list[str]]:
    """The crates by label, each with those it uses; normal dependencies."""
    by_name = {crate.name: crate for crate in crates}
    links: dict[str, list[str]] = {crate.label: [] for crate in crates} | graph(
        (crate.label, by_name[used].label) for crate in crates for used in crate.uses
    )
    return {label: links[label] for label in sorted(links)}


def picture(crates: list[Package]) -> str:
    """The crates in layers. A crate uses crates of lower layers only; needs a graph without circles."""
    links = crate_graph(crates)
    height: dict[str, int] = {}

    def layer(label: str) -> int:
        if label not in height:
            height[label] = 1 + max((layer(used) for used in links[label]), default=-1)
        return height[label]

    below: dict[str, set[str]] = {}
    for label in sorted(links, key=layer):
        below[label] = set(links[label]).union(*(below[used] for used in links[label]))
    column = max(len(label) for label in links) + 2
    inner = WIDTH - 2
    lines: list[str] = []
    for level in range(max(height.values()), -1, -1):
        title = f" {level} "
        left = "┌" if not lines else "├"
        right = "┐" if not lines else "┤"
        lines.append(left + title + "─" * (inner - len(title)) + right)
        for label in sorted(label for label in links if height[label] == level):
            # A crate that is reached through another one need not be said.
            direct = [
                used for used in links[label] if not any(used in below[other] for other in links[label])
            ]
            text = f" {label:<{column}}" + (f"──▶ {'  '.join(direct)}" if direct else "")
            lines += [f"│{row:<{inner}}│" for row in _wrapped(text, inner - 1, column + 5)]
    lines.append("└" + "─" * inner + "┘")
    return "\n".join(lines)


def _wrapped(text: str, width: int, indent: int) -> list[str]:
    rows = []
    while len(text) > width:
        cut = text.rfind("  ", 0, width)
        rows.append(text[:cut])
        text = " " * indent + text[cut + 2 :]
    return [*rows, text]
