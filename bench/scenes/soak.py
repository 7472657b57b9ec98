"""Runs agent and switch for hours while ports, limits, captures and processes come and go. Is all as before?

Two permanent ports carry numbered traffic. Each cycle makes vhost-user ports and taps, moves frames
over them, changes limits, moves a port to another segment, captures, kills front ends in mid-traffic, now
and then the agent or the switch, and takes all of it away again. At rest, memory, descriptors and threads
are compared.
"""

import contextlib
import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from harness import soaked
from harness.flat import SETTLE, Sample, judge
from harness.model import Context, Missing, Misused, OptionGroup, Result, Scene
from lab.host import Host, tap_vnic, vhost_user_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.process import Process, wait_for

REPORT = "target/reliability/soak.json"
LIMIT = 10
"""Contract of the permanent sender, Mbit/s: little, so that a soak can run beside other work."""
CHURN = 4
"""vhost-user ports that come and go."""
AGENT_EVERY, SWITCH_EVERY = 20, 30
"""Cycles between two kills: each process lives long enough to grow, if it does."""
LEAST = 5
"""Cycles of the shortest run: enough to compare."""


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    group.add_argument("--hours", type=float, default=1.0, metavar="N", help="how long, such as 0.05; 1")
    group.add_argument("--seed", type=int, default=1, metavar="N", help="of the random choices; 1")
    group.add_argument("--report", type=Path, metavar="FILE", help=f"where the result goes; {REPORT}")


def mac(number: int) -> str:
    """The MAC of port `number`."""
    return f"52:54:00:00:50:{number:02x}"


class World:
    """Agent, switch, and everything around them."""

    def __init__(self, context: Context, folder: Path) -> None:
        cleanup = context.cleanup
        self.folder = folder
        self.say = context.say
        self.bench = context.tidegate.with_name("tidegate-bench")
        self.temporary = Path(tempfile.gettempdir())
        self.random = random.Random(context.options.seed)
        self.lives = {"agent": 0, "switch": 0}
        # One that took a running switch over holds no listening sockets before the next switch comes.
        self.agent_holds = "sockets"
        self.host = cleanup.enter_context(Host(folder))
        self.stacks = [cleanup.enter_context(Stack(folder / name)) for name in ("left", "right")]
        self.contracts = "".join(
            vhost_user_vnic(f"p{n}", folder / f"p{n}.sock", mac(n), *lines)
            for n, lines in enumerate(([f'tx = {{ max = "{LIMIT}mbit" }}'], []))
        )
        self.host.apply(self.contracts)
        self.base = self.host.file(self.contracts, "base.toml")
        self.steady = cleanup.enter_context(self.traffic("p0", "p1", self.base))
        self.read = 0
        self.soak = soaked.Soak(soaked.Steady(LIMIT * 1e6), time.monotonic())

    def traffic(self, sender: str, receiver: str, contracts: Path) -> Process:
        """Numbered frames from one vNIC to another, until stopped."""
        log = self.folder / f"{sender}-{receiver}.log"
        log.unlink(missing_ok=True)
        words: list[str | Path] = ["--contracts", contracts, "numbered", "--from", sender, "--to", receiver]
        process = Process([self.bench, *words], log)
        process.wait_for("traffic", lambda: '"received"' in process.output())
        return process

    def follow(self) -> None:
        """Read the lines of the steady traffic since the last call."""
        with self.steady.log.open() as log:
            log.seek(self.read)
            for line in log:
                if not line.endswith("\n"):
                    break
                self.read += len(line)
                self.soak.steady.take(json.loads(line))
        if not self.steady.running:
            raise RuntimeError(f"the steady traffic ended:\n{self.steady.output()[-2000:]}")

    def attempt(self, what: str, step: Callable[[], object]) -> None:
        """One step of churn: counted if it succeeds, noted if it fails; the soak goes on."""
        try:
            step()
            self.soak.did(what)
        except (RuntimeError, TimeoutError, OSError, subprocess.TimeoutExpired) as error:
            text = f"cycle {self.soak.cycles}: {what}: {' '.join(str(error).split())[:400]}"
            self.soak.failures.append(text)
            self.say(f"failed: {text}")

    def cycle(self) -> None:
        """Make all ports, change them, and remove them once."""
        number, soak = self.soak.cycles, self.soak
        names = [f"c{n}" for n in range(CHURN)]
        more = "".join(
            vhost_user_vnic(n, self.folder / f"{n}.sock", mac(16 + i)) for i, n in enumerate(names)
        )
        more += "".join(tap_vnic(f"t{n}", s.path, mac(32 + n), segment=9) for n, s in enumerate(self.stacks))
        every = self.host.file(self.contracts + more, "every.toml")
        with ExitStack() as ending:

            def connect(n: int) -> Process:
                return ending.enter_context(self.traffic(f"c{n}", f"c{n + 1}", every))

            self.attempt("sets of ports made", lambda: self.host.cli("apply", "-f", every))
            for n in range(2, CHURN, 2):
                self.attempt("front ends connected", partial(connect, n))
            self.attempt("pings between taps", self.ping)
            for _ in range(3):
                rate = f"tx.max={self.random.randrange(5, 200)}mbit"
                self.attempt("limits changed", partial(self.host.cli, "vnic", "set", "c0", rate))
            self.attempt("segments moved", self.move)
            self.attempt("captures", self.capture)
            if number % AGENT_EVERY == 2:
                self.attempt("kills of the agent", self.kill_agent)
            if number % SWITCH_EVERY == 3:
                self.attempt("kills of the switch", self.kill_switch)
            for _ in range(2):
                self.attempt("front ends killed in mid-traffic", lambda: self.die(connect(0)))
            self.follow()
        self.attempt("sets of ports removed", lambda: self.host.cli("apply", "-f", self.base, "--prune"))
        self.rest(number)
        soak.cycles += 1

    def ping(self) -> None:
        """Frames over the taps, which are made anew each cycle."""
        for n, stack in enumerate(self.stacks):
            stack.address("eth0", f"10.9.0.{n + 1}/24")
        self.stacks[0].run("ping -c 5 -i 0.05 -W 5 10.9.0.2")

    def move(self) -> None:
        """A port into another segment and back."""
        for segment in (7, 1):
            self.host.cli("vnic", "set", "c2", f"segment={segment}")

    def capture(self) -> None:
        """Capture the steady traffic for a moment; a kill ends about half of the captures."""
        args = ["capture", "p0", "--write", self.folder / "capture.pcapng", "--count", 200]
        words = [str(a) for a in args]
        if self.random.random() < 0.5:
            self.host.cli(*words)
        else:
            with Process(
                [self.binary, "--api", self.host.api, *words[:-2]], self.folder / "capture.log"
            ) as p:
                time.sleep(0.5)
                p.kill()
        (self.folder / "capture.log").unlink(missing_ok=True)

    @property
    def binary(self) -> str:
        """The program under test."""
        return self.host.switch.args[3]

    def kill_agent(self) -> None:
        """Kill the agent, as a crash does; a new one takes over."""
        self.host.kill_agent()
        self.lives["agent"] += 1
        self.agent_holds = "no sockets"
        self.host.start_agent()

    def kill_switch(self) -> None:
        """Kill the switch, as a crash does; every front end connects again."""
        self.soak.steady.disturbed = 1e12
        self.host.switch.kill()
        self.lives["switch"] += 1
        self.agent_holds = "sockets"
        self.host.start_switch()
        self.host.wait_up("p0", "p1", timeout=60)
        self.follow()
        self.soak.steady.disturbed = self.soak.steady.last["seconds"] + 5

    def die(self, traffic: Process) -> None:
        """Kill a pair of front ends under load; wait until its ports are free again."""
        time.sleep(0.3)
        traffic.kill()
        wait_for(
            "its ports to be free",
            lambda: all(self.host.show(n).connection == "waiting" for n in ("c0", "c1")),
        )

    def rest(self, cycle: int) -> None:
        """Wait until all traces of the cycle are gone, and take the samples."""
        settled = [self.look(cycle)]

        def still() -> bool:
            settled.append(self.look(cycle))
            # Other processes may take a moment to close descriptors.
            return all(self.usual(s) in {None, (s.fds, s.threads)} for s in settled[-1])

        time.sleep(1)
        with contextlib.suppress(TimeoutError):
            wait_for("the base set of ports", still, 10)
        self.soak.samples += settled[-1]
        self.follow()

    def usual(self, sample: Sample) -> tuple[int, int] | None:
        """Descriptors and threads of the first counted sample of its process and kind; `None` without one."""
        like = (s for s in self.soak.samples if s.process == sample.process and s.kind == sample.kind)
        first = next((s for s in like if s.cycle >= SETTLE), None)
        return (first.fds, first.threads) if first else None

    def look(self, cycle: int) -> list[Sample]:
        """The samples of both processes and both folders now."""
        host = self.host
        return [
            soaked.process_sample(cycle, "agent", self.lives["agent"], host.agent.pid, self.agent_holds),
            soaked.process_sample(cycle, "switch", self.lives["switch"], host.switch.pid),
            soaked.folder(cycle, "state folder", host.state),
            soaked.folder(cycle, "temporary folder", self.temporary),
        ]


def run(context: Context) -> Result:
    """Soak, and write the result; also if the run is interrupted."""
    hours = context.options.hours
    if not 0 < hours <= 1000:
        raise Misused("--hours must be above 0, at most 1000")
    if not can_make_namespaces():
        raise Missing("no right to make network namespaces: run it as root, or as `make soak`")
    # Before it can change under the run.
    tested = soaked.commit(context.root)
    # The files that the processes leave behind in /tmp are alone there.
    temporary = context.folder / "tmp"
    temporary.mkdir()
    os.environ["TMPDIR"] = str(temporary)
    context.cleanup.callback(setattr, tempfile, "tempdir", tempfile.tempdir)
    tempfile.tempdir = str(temporary)
    world = World(context, context.folder)
    context.say(f"soaking for {hours:g} h in {context.folder}")
    interrupted = False
    try:
        cycles(world, hours)
    except KeyboardInterrupt:
        interrupted = True
    result = written(context, world, tested)
    if interrupted:
        context.keep(result)
        raise KeyboardInterrupt
    return result


def cycles(world: World, hours: float) -> None:
    """Cycles until the time is over."""
    soak = world.soak
    end = soak.began + hours * 3600
    while time.monotonic() < end or soak.cycles < LEAST:
        world.cycle()
        done = (time.monotonic() - soak.began) / 3600
        resident = ", ".join(f"{s.process} {s.rss >> 10} KiB {s.fds} fds" for s in soak.samples[-4:-2])
        world.say(
            f"cycle {soak.cycles}, {done:.2f} of {hours:g} h: {resident}; "
            f"steady {soak.steady.ratio:.3f}; {len(judge(soak.samples))} grew; "
            f"{len(soak.failures)} steps failed"
        )


def written(context: Context, world: World, tested: str) -> Result:
    """Write the result for scene reliability, and the samples beside it."""
    file = context.options.report or context.root / REPORT
    rows = soaked.rows(world.soak, (time.monotonic() - world.soak.began) / 3600)
    notes = ["Two permanent vhost-user ports, four more and two taps that come and go."]
    notes += [f"Not flat: {finding}." for finding in judge(world.soak.samples)]
    document = {
        "name": "soak",
        "command": f"make soak HOURS={context.options.hours:g}",
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": tested if "TIDEGATE_BIN" not in os.environ else "unknown",
        "rows": rows,
        "notes": notes,
    }
    soaked.write(file, document)
    samples = [vars(sample) for sample in world.soak.samples]
    soaked.write(file.with_name("soak-samples.json"), {"samples": samples})
    return Result(
        tables=[soaked.markdown(rows)],
        notes=notes,
        failures=[f"{row['measure']}: {row['seen']}" for row in rows if row["verdict"] == "missed"],
    )


SCENE = Scene(
    name="soak",
    title="Hours of churn",
    about=(
        "Ports, limits, segments, captures and killed processes come and go for hours beside steady traffic; "
        "memory, descriptors, threads and the steady rate have to stay as they are. "
        f"Writes {REPORT} for scene reliability."
    ),
    order=970,
    run=run,
    default=False,
    add_options=add_options,
    programs=("tidegate", "tidegate-bench"),
)
