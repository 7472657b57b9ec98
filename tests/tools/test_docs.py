"""What the documentation says, checked against the program: contracts, links, commands, metrics, routes."""

import json
import re
import shlex
import socket
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from lab.host import BINARY, Host, tap_vnic, vhost_user_vnic
from lab.initramfs import ROOT
from lab.limit import LimitPort
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.process import wait_for

pytestmark = pytest.mark.abreast

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
REFERENCE = ROOT / "docs" / "reference"
FENCE = re.compile(r"^[ ]*```(\w*)\n(.*?)^[ ]*```", re.MULTILINE | re.DOTALL)
METHODS = "GET|POST|PUT|PATCH|DELETE"


def name(page: Path) -> str:
    """A page as a test's id."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[str]:
    """The code blocks of these languages."""
    return [text for language, text in FENCE.findall(page.read_text()) if language in languages]


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return FENCE.sub("", page.read_text())


# Contracts


OTHER_FILES = {"docs/reference/cli.md", "docs/reference/controller.md"}
"""Pages with files of operators and of the network's controller, whose tests read them."""


def contracts() -> list[tuple[str, str]]:
    """Every TOML block of contracts, with where it stands."""
    found = []
    for page in PAGES:
        for number, text in enumerate(blocks(page, "toml"), 1):
            tables = tomllib.loads(text)
            if name(page) in OTHER_FILES:
                continue
            known = {"vnic", "host", "uplink", "remote", "segment", "controller"}
            assert tables.keys() <= known, f"{name(page)}: block {number} is no contract"
            found.append((f"{name(page)} block {number}", text))
    return found


def test_contracts_are_valid(host: Host, subtests: pytest.Subtests) -> None:
    """`plan` finds nothing wrong with any of them, and they fit; only the host they are for is not here."""
    # Folders of sockets, namespaces and interfaces are those of the reader's host.
    elsewhere = re.compile(
        r"does not exist(: make it first| in this network namespace|; write the segment's key)"
        r"|is no NIC with virtual"
        r"|by --socket-root /run/vm \("
    )
    found = contracts()
    assert len(found) > 5
    for where, text in found:
        with subtests.test(where):
            done = host.try_cli("plan", "-f", host.file(text), "--json")
            assert done.stdout, done.stderr
            refusals = json.loads(done.stdout)["refusals"]
            assert [r for r in refusals if not elsewhere.search(r)] == []


def test_every_key_is_documented() -> None:
    """The tables of the reference have each key that the parser knows, and no other."""
    source = (ROOT / "crates/contract/src/parse/keys.rs").read_text()
    known = {key.replace("_", "-") for key in re.findall(r'"([a-z][a-z_-]*)"', source)}
    text = (REFERENCE / "contract.md").read_text().split("## `[vnic.NAME]`")[1]
    documented = set(re.findall(r"^\| \[?`(?:tx\.|rx\.|queueing\.|allowed\.)?([a-z-]+)`", text, re.MULTILINE))
    # `host` is a key of [controller], too.
    assert documented == known - {"vnic", "uplink", "remote", "controller"}


def keys(text: str) -> set[str]:
    """The keys in the first column of a page's tables."""
    columns = re.findall(r"^\| (\[?`[^|]*) \|", text, re.MULTILINE)
    return {key for column in columns for key in re.findall(r"`([a-z.-]+)`", column)}


def test_every_key_stands_at_every_place() -> None:
    """PROMISES.md says of each key of a contract, and of a host, what each place does with it."""
    reference = (REFERENCE / "contract.md").read_text().split("## `[vnic.NAME]`")[1]
    vnic, host = reference.split("## `[host]`")
    attach = vnic.split("### `attach`")[1].split("### `tx`")[0]
    tables = {"attach", "tx", "rx", "allowed", "nic", "cores", "flow"}
    wanted = keys(vnic.replace(attach, "")) | keys(host.split("### `[host.nic")[0])
    section = (ROOT / "PROMISES.md").read_text().split("## What each place keeps")[1].split("\n## ")[0]
    assert keys(section) == wanted - tables


# Links


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links(page: Path) -> None:
    """Every relative link leads to a file that is there, and its anchor to a heading."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


# Commands


@cache
def usage(*command: str) -> str:
    """`tidegate COMMAND --help`; empty where there is no such command."""
    command_line = [str(BINARY), *command, "--help"]
    done = subprocess.run(command_line, capture_output=True, text=True, timeout=10, check=False)
    return done.stdout if done.returncode == 0 else ""


@cache
def subcommands(*command: str) -> frozenset[str]:
    """The commands below a command."""
    listed = re.search(r"^Commands:\n(.*?)\n\n", usage(*command), re.MULTILINE | re.DOTALL)
    names = re.findall(r"^  ([\w-]+)", listed.group(1), re.MULTILINE) if listed else []
    return frozenset(names) - {"help"}


def flags(*command: str) -> set[str]:
    """The flags a command takes."""
    return set(re.findall(r"(?<![\w-])(--?[a-zA-Z][\w-]*)", usage(*command)))


def invocations(page: Path) -> Iterator[str]:
    """Every `tidegate ...` of a page: in shell blocks, behind prompts, in units, between backticks."""
    for text in blocks(page, "sh", "console", "ini"):
        for line in text.replace("\\\n", " ").splitlines():
            start = re.match(r"(?:\$ |sudo |ExecStart=)*(?:\S*/)?tidegate (.+)", line.strip())
            if start:
                yield start.group(1)
    for text in re.findall(r"`(?:sudo )?tidegate ([^`]+)`", prose(page)):
        yield re.sub(r"\s+", " ", text)


def wrong(invocation: str) -> str:
    """What is wrong with a command line; empty where nothing is."""
    words = []
    for word in shlex.split(invocation, comments=True):
        if word in ("|", ">", "&&", ";"):
            break
        words.append(word)
    # Options that stand before the command.
    while words and words[0].startswith("-"):
        takes_value = words[0] == "--api"
        words = words[2 if takes_value else 1 :]
    # The program inside a guest.
    if words[:1] == ["limit"]:
        return ""
    command: list[str] = []
    while words and subcommands(*command):
        if words[0] in ("…", "...", "→"):
            return ""
        if words[0].rstrip(",") not in subcommands(*command):
            return f"tidegate {' '.join(command)} has no command {words[0]}"
        command.append(words.pop(0).rstrip(","))
    unknown = [w for w in words if re.match(r"--?[a-zA-Z]", w) and w.split("=")[0] not in flags(*command)]
    return f"tidegate {' '.join(command)} has no flag {', '.join(unknown)}" if unknown else ""


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands(page: Path) -> None:
    """Every command that a page names exists and takes the flags it is given."""
    need("no release build: cargo build --release", BINARY.exists())
    assert [w for w in map(wrong, invocations(page)) if w] == []


def promised_commands() -> list[list[str]]:
    """The words of each command between backticks in PROMISES.md, but for those of `tidegate` itself."""
    programs = ("cargo ", ".venv/bin/pytest ", "make ", "bench/", "scripts/")
    found = re.findall(r"`([^`]+)`", (ROOT / "PROMISES.md").read_text())
    return [shlex.split(text) for text in found if text.startswith(programs)]


def wrong_cargo(words: list[str]) -> str:
    """What is wrong with `cargo test WORDS`: packages, test programs, and one filter at most before `--`."""
    end = words.index("--") if "--" in words else len(words)
    own, filters = words[:end], [word for word in words[end:] if not word.startswith("-")]
    folder, programs, before = ROOT, [], []
    while own:
        word = own.pop(0)
        if word == "-p":
            crate = own.pop(0).removeprefix("tidegate-")
            folder = ROOT / "crates" / crate.replace("place-", "places/")
        elif word == "--test":
            programs.append(own.pop(0))
        elif not word.startswith("-"):
            before.append(word)
    if len(before) > 1:
        return f"more than one filter before --: {' '.join(before)}"
    tests = {p: [*folder.glob(f"tests/{p}.rs"), *folder.glob(f"tests/{p}/**/*.rs")] for p in programs}
    missing = [program for program, sources in tests.items() if not sources]
    sources = [s for found in tests.values() for s in found] or list(folder.glob("src/**/*.rs"))
    names = " ".join(f"{s} {s.read_text()}" for s in sources)
    missing += [f for f in [*before, *filters] if f.removesuffix("::") not in names]
    return f"{folder.name} has no {', '.join(missing)}" if missing else ""


def wrong_pytest(words: list[str]) -> str:
    """What is wrong with `pytest WORDS`: files that are not there, and a `-k` that none of them has."""
    files = [ROOT / word for word in words if word.endswith(".py")]
    missing = [name(file) for file in files if not file.exists()]
    text = " ".join(file.read_text() for file in files if file.exists())
    keys = [key for option, key in pairwise(words) if option == "-k" and key not in text]
    return f"no {', '.join([*missing, *keys])}" if missing or keys else ""


def wrong_make(words: list[str]) -> str:
    """What is wrong with `make WORDS`: targets and variables that the Makefile lacks."""
    text = (ROOT / "Makefile").read_text()
    patterns = [rf"\b{w.split('=')[0]}\b" if "=" in w else rf"^{w}:" for w in words]
    missing = [word for word, p in zip(words, patterns, strict=True) if not re.search(p, text, re.MULTILINE)]
    return f"the Makefile has no {', '.join(missing)}" if missing else ""


@cache
def bench_options(*scenes: str) -> frozenset[str]:
    """The options that `bench/run` lists for these scenes; none where it refuses them."""
    named = [word for scene in scenes for word in ("--scene", scene)]
    command = [str(ROOT / "bench/run"), *named, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    listed = re.findall(r"^  (?:-\w, )?(--[\w-]+)", done.stdout, re.MULTILINE)
    return frozenset(listed) if done.returncode == 0 else frozenset()


def wrong_script(script: str, words: list[str]) -> str:
    """What is wrong with `bench/run WORDS` or `scripts/NAME WORDS`: no such program, flag or scene."""
    file = ROOT / script
    if not file.is_file():
        return "no such program"
    options = {word.split("=")[0] for word in words if word.startswith("--")}
    if script != "bench/run":
        return f"{script} takes no options" if options else ""
    scenes = [scene for option, scene in pairwise(words) if option == "--scene"]
    missing = [scene for scene in scenes if not (ROOT / f"bench/scenes/{scene}.py").exists()]
    missing += sorted(options - bench_options(*scenes))
    return f"it has no {', '.join(missing)}" if missing else ""


def test_unknown_options_of_a_promise_are_found() -> None:
    """A flag of another scene, a misspelt flag and a misspelt scene are wrong; a scene's own flag is not."""
    assert wrong_script("bench/run", ["--scene", "kernel_rates", "--rates", "8", "--only", "tx"]) == ""
    assert "--rates" in wrong_script("bench/run", ["--scene", "nic_control", "--rates", "8"])
    assert "--rate_" in wrong_script("bench/run", ["--scene", "queues", "--rate_", "8"])
    assert "nic_contrl" in wrong_script("bench/run", ["--scene", "nic_contrl"])
    assert wrong_script("bench/run --scene agent_load", []) == "no such program"


@pytest.mark.parametrize("words", promised_commands(), ids=" ".join)
def test_promised_commands(words: list[str]) -> None:
    """Every command that PROMISES.md names can be run as it stands."""
    program, *rest = words
    if program == "cargo":
        assert rest.pop(0) == "test"
        assert wrong_cargo(rest) == ""
    elif program.endswith("pytest"):
        assert wrong_pytest(rest) == ""
    elif program == "make":
        assert wrong_make(rest) == ""
    else:
        assert wrong_script(program, rest) == ""


def test_counts_agree() -> None:
    """Lies and deaths are as many in PROMISES.md as on the page that is made from their results."""
    measured = (ROOT / "docs/reliability.md").read_text()
    promised = re.findall(r"\b\d+ (?:lies|deaths)\b", (ROOT / "PROMISES.md").read_text())
    assert len(promised) == 2
    assert [count for count in promised if not re.search(rf"\b{count}\b", measured)] == []


def test_command_reference_is_complete() -> None:
    """cli.md has a section for every command, and every flag in the section of its command."""
    need("no release build: cargo build --release", BINARY.exists())
    text = (REFERENCE / "cli.md").read_text()
    head, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    shared = set(re.findall(r"--?[a-zA-Z][\w-]*", head))
    leaves = [(c, s) for c in sorted(subcommands()) for s in sorted(subcommands(c)) or [""]]
    for command in ([word for word in leaf if word] for leaf in leaves):
        sections = [p for p in parts if re.match(rf"`tidegate {' '.join(command)}\b", p)]
        assert len(sections) == 1, command
        assert flags(*command) - shared - set(re.findall(r"--?[a-zA-Z][\w-]*", sections[0])) == set(), command


# API and metrics


def test_routes(host: Host) -> None:
    """api.md has a section for every route of /openapi.json and no other."""
    document = json.loads(host.get("/openapi.json"))
    served = {f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item}
    text = (REFERENCE / "api.md").read_text()
    assert set(re.findall(rf"^## `((?:{METHODS}) \S+)`$", text, re.MULTILINE)) == served


def test_metrics(host: Host, tmp_path: Path) -> None:
    """metrics.md has every metric that is served, with its type and labels, and no other."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("ping")
    mac = "52:54:00:00:0d:02"
    guest = LimitPort(host.folder / "voice.limit")
    key = host.folder / "key"
    key.touch(0o600)
    key.write_text("00112233445566778899aabbccddeef0\n")
    with Stack(tmp_path / "a") as a:
        # A real-time frame to a vNIC without a VM is dropped, which is a miss: every metric has a value.
        address = "ip link set lo up && ip addr add 192.0.2.1/32 dev lo"
        enter = ["nsenter", f"--net=/proc/{host.agent.pid}/ns/net"]
        subprocess.run([*enter, "sh", "-c", address], check=True)
        host.apply(
            vhost_user_vnic("sink", host.folder / "sink.sock", mac, 'rx = { max = "1gbit" }')
            + tap_vnic(
                *("voice", a.path, "52:54:00:00:0d:01", 'tx = { max = "2mbit", burst = "2kB" }'),
                *('deadline = "1ms"', 'to = ["sink"]', f'guest = "{host.folder}/voice.limit"'),
            )
            # To a peer without a route: frames are counted, and dropped.
            + '[uplink.net0]\nlocal = "192.0.2.1"\nrate = "1gbit"\nmtu = 1600\n'
            + 'latency = "100us"\n[uplink.net0.peer.far]\naddress = "198.51.100.9"\n'
            + '[remote.cam]\nmac = "52:54:00:00:0d:04"\nsegment = 1\npeer = "far"\n'
            + 'tx = { max = "1mbit", burst = "2kB" }\ndeadline = "2ms"\nto = ["sink"]\n'
            + f'[segment.1]\nkey-file = "{key}"\n'
            + tap_vnic(
                *("bulk", a.path, "52:54:00:00:0d:03", 'tx = { max = "1mbit", burst = "2kB" }'), device="eth1"
            )
        )
        a.address("eth0", "10.13.0.1/24")
        a.run(f"ip neigh add 10.13.0.2 lladdr {mac} dev eth0")
        a.try_run("ping -c 1 -W 1 10.13.0.2")
        # More than its tokens are for, so that frames wait by flow.
        a.address("eth1", "10.14.0.1/24")
        a.run(f"ip neigh add 10.14.0.2 lladdr {mac} dev eth1")
        a.try_run("ping -c 4 -l 4 -s 1400 -W 1 10.14.0.2")
        assert guest.ask("set * 1mbit") == ["ok"]
        with socket.socket(socket.AF_UNIX) as front_end:
            # A message that there is not: the front end is thrown out.
            front_end.connect(str(host.folder / "sink.sock"))
            front_end.sendall(bytes(12))
            wait_for("a front end thrown out", lambda: "vnic_thrown_out_total" in host.get("/metrics"))
        wait_for("a drop at the uplink", lambda: "uplink_dropped_frames_total{" in host.get("/metrics"))
        text = host.get("/metrics")
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    served: dict[str, tuple[str, set[str]]] = {}
    for sample, labels in re.findall(r"^(\w+)(?:\{([^}]*)\})? ", text, re.MULTILINE):
        family = re.sub(r"_(total|sum|count|bucket)$", "", sample)
        kind = types.get(sample) or types[family]
        shown = sample if kind != "histogram" else family
        served.setdefault(shown, (kind, set()))[1].update(re.findall(r'(\w+)="', labels))
    row = re.compile(r"^\| `(tidegate_\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)
    rows = row.findall((REFERENCE / "metrics.md").read_text())
    documented = {metric: (kind, set(re.findall(r"`(\w+)`", labels))) for metric, kind, labels in rows}
    # Served once another host answers: tests/switch/test_clock.py.
    answers = ("clock_offset_seconds", "clock_error_seconds", "round_trip_seconds", "refused_notices_total")
    for metric in (f"tidegate_peer_{answer}" for answer in answers):
        del documented[metric]
    # Served where CPUs are planned and frames steered, where a controller grants paths, and with RDMA:
    # cores.rs, paths.rs and rdma.rs in crates/agent/src/api/metrics.
    elsewhere = ("tidegate_cores_", "tidegate_path_", "tidegate_rdma_", "tidegate_vnic_zero_cop")
    for metric in [metric for metric in documented if metric.startswith(elsewhere)]:
        served.setdefault(metric, documented[metric])
    assert documented == served


def test_metrics_named_elsewhere() -> None:
    """A metric that any page names is in metrics.md."""
    text = (REFERENCE / "metrics.md").read_text()
    documented = set(re.findall(r"^\| `(tidegate_\w+)`", text, re.MULTILINE))
    assert documented
    for page in PAGES:
        named = re.findall(
            r"\btidegate_(?:vnic|uplink|worker|switch|place|agent|cores|path)_\w+", page.read_text()
        )
        # A histogram is asked for by its buckets.
        assert {name.removesuffix("_bucket") for name in named} <= documented


def test_reasons_and_causes() -> None:
    """metrics.md explains every drop reason and cause of misses that the places know, and no other."""
    files = ("evidence/src/reason.rs", "switch/src/stats/thrown_out.rs", "evidence/src/drops.rs")
    sources = [ROOT / "crates" / file for file in files]
    labels = re.compile(r'^\s+\w+ = "(\w+)",$', re.MULTILINE)
    known = {label for source in sources for label in labels.findall(source.read_text())}
    section = (REFERENCE / "metrics.md").read_text().split("## Causes and reasons")[1]
    rows = re.findall(r"^\| (`[^|]*`) \|", section, re.MULTILINE)
    assert {word for row in rows for word in re.findall(r"`(\w+)`", row)} == known
