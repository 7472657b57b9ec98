"""Between hosts: Tidegate's uplink beside the kernel's vxlan and bridge, on one veth pair.

Two hosts are network namespaces, each with a CPU of its own. Parts: `rates` counts frames and bytes for
each second of CPU time, that of both hosts; `rings` the frames of guests' rings, by the hosts' CPU time
alone; `voice` is a voice flow beside bulk over 1 Gbit/s. `--page` writes `docs/performance/uplink.md`.
"""

import json
import shlex
import sys
import time

from harness import page, report
from harness.model import Context, Misused, OptionGroup, Result, Scene
from harness.pivot import figures_by_row
from scenes.uplinks import rates, rings, voice
from scenes.uplinks.hosts import KINDS, TAPS, VETHS, Network

PARTS = ("rates", "rings", "voice")
PAGE = "docs/performance/uplink"
WRITTEN = "<!-- Written by `bench/run --scene uplink --page`, beside uplink.json: do not edit. -->"


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    group.add_argument("--parts", default="all", choices=[*PARTS, "all"], help="what is measured; all")
    group.add_argument(
        "--kinds",
        default=",".join(KINDS),
        metavar="KIND,...",
        help=f"of uplink, of {' '.join(KINDS)}; all",
    )
    group.add_argument("--rounds", type=int, default=5, metavar="N", help="windows of each case; 5")
    group.add_argument(
        "--seconds",
        type=float,
        default=2.0,
        metavar="N",
        help="of a window of `rates`; 2",
    )


def run(context: Context) -> Result:
    """Measures the parts, and writes the page if asked to."""
    wanted = context.options
    kinds = wanted.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise Misused(f"--kinds: no '{unknown[0]}'; there are: {' '.join(KINDS)}")
    began, result = time.monotonic(), Result()
    parts = PARTS if wanted.parts == "all" else (wanted.parts,)
    if "rates" in parts:
        machine = context.machine
        cpus = (machine.generator_cpu, machine.switch_cpu)
        network = Network(context, "hosts", cpus)
        ours = [
            (network if kind == "vxlan" else Network(context, kind, cpus)).tidegate(kind) for kind in kinds
        ]
        pairs = [*ours, network.kernel(TAPS), network.kernel(VETHS)]
        add(
            result,
            rates.measure(context, network, pairs, wanted.rounds, wanted.seconds),
        )
    if "rings" in parts:
        add(result, rings.measure(context, kinds, wanted.rounds, wanted.seconds))
    if "voice" in parts:
        add(result, voice.measure(context, wanted.rounds, 5 * wanted.seconds))
    if result.tables and result.figures:
        # Tables stand in place of the list of figures.
        figures = report.scene_document(SCENE, "", result, "", 0.0)["figures"]
        result.tables.insert(0, figures_by_row(figures))
    if wanted.page:
        write_page(context, result, time.monotonic() - began)
    return result


def add(result: Result, part: Result) -> None:
    """Append a part's result."""
    result.figures += part.figures
    result.targets += part.targets
    result.windows += part.windows
    result.tables += part.tables
    result.notes += part.notes


def write_page(context: Context, result: Result, seconds: float) -> None:
    """Write the page and its results."""
    command = shlex.join(["bench/run", *sys.argv[1:]])
    document = report.scene_document(SCENE, command, result, "", seconds)
    document |= context.when
    folder = context.root / PAGE
    folder.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    folder.with_suffix(".md").write_text(page.scene_page(document).replace(page.WRITTEN, WRITTEN))


SCENE = Scene(
    name="uplink",
    title="Between hosts: beside the kernel's vxlan and bridge",
    about=(
        "Two hosts are network namespaces with a veth pair between them, each with a CPU of its own for its "
        "switch, its guests and their programs. Guests are network namespaces: behind taps of Tidegate, "
        "behind taps of the kernel's bridge with a vxlan interface, or behind veth pairs to that bridge, "
        "over the same veth pair between the hosts, in turns; plain NICs (`packet`, `xdp`) have a "
        "veth pair of their own. A program reads and writes each frame of a "
        "tap, as it does for a VM, so the targets compare taps with taps. Frames are sent by AF_PACKET, 64 "
        "a call, never more than 512 on their way, and counted at the receiving guest; TCP is iperf3's. "
        "CPU time is that of both CPUs, senders and receivers among it, less that of an idle window "
        "before. *Guests' rings*: a DPDK generator at vhost-user rings, its own CPU time not counted; of "
        "the kernel's vxlan with veth pairs, that of guests without anything between them is taken off. "
        "*Voice*: 142 B each ms beside TCP and UDP over 1 Gbit/s: a FIFO of 1,514,000 bytes at the "
        "kernel's bridge and vxlan, and an uplink of that rate, without and with a deadline."
    ),
    order=960,
    run=run,
    has_cases=True,
    keeps=True,
    default=False,
    add_options=add_options,
    writes_page=True,
)
