"""A voice call, a video stream and DDS between two hosts, beside bulk over the same network.

```text
 app  ─ tap ─ switch 1 ─┐                                            ┌─ switch 2 ─ tap ─ far
 bulk ─ tap ────────────┴─ eth0 ─ 100 Mbit/s, FIFO of 1000 ─ eth0 ──┴──────────── tap ─ sink
 rows: idle (contract, no bulk) │ FIFO with bulk │ contract with bulk
```
"""

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

from harness.measure import interleave
from harness.model import Contender, Context, Figure, Json, Missing, OptionGroup, Result, Scene, samples
from lab.process import Process
from lab.two_hosts import TwoHosts
from scenes.applications import dds
from scenes.between import rtp, skew
from scenes.stacks import reports

MBIT = 1_000_000
MS = 1_000_000
NETWORK = 100 * MBIT
DEADLINE = 20 * MS
IDLE, FIFO_BULK, CONTRACT_BULK = "idle", "FIFO with bulk", "contract with bulk"
ENVELOPE = 'tx = { max = "8mbit", burst = "16kB" }'
RX = 'rx = { max = "1gbit" }'
CONTRACT: dict[str, tuple[str, ...]] = {
    "app": (ENVELOPE, RX, 'deadline = "20ms"', 'to = ["far"]'),
    "far": (ENVELOPE, RX, 'deadline = "20ms"', 'to = ["app"]'),
}
WAY = ('latency = "2ms"', 'arrival-budget = "2ms"')
VOICE, VIDEO, DDS = "voice call, SIP and RTP", "video, JPEG over RTP", "DDS ping, round trip"
NEEDS = {
    VOICE: ("sipp", "sip-tester"),
    VIDEO: ("gst-launch-1.0", "gstreamer1.0-tools"),
    DDS: ("ddsperf", "cyclonedds-tools"),
}
"""The program of each application, and its Debian package."""
AUDIO = "/usr/share/sip-tester/g711a.pcap"
"""Eight seconds of speech, G.711, 20 ms a packet."""
SECONDS = 8
VIDEO_PORT = 5004


class Stage:
    """The hosts, and what runs between them."""

    def __init__(self, context: Context) -> None:
        self.hosts = TwoHosts(
            context.folder,
            [["app", "bulk"], ["far", "sink"]],
            context.cleanup,
            network=("--fifo-priority", "3"),
            options=skew.switches(context),
        )
        self.apply(IDLE)
        self.hosts.settle()
        way = {"name": "way", "delay_ns": [200_000, 400_000], "in_order": True, "record": False}
        self.hosts.underlay.rules.plan(way, rate_bps=NETWORK, queue=1000)
        self.app, self.far = self.hosts.stacks["app"], self.hosts.stacks["far"]
        self.here, self.there = self.hosts.address("app"), self.hosts.address("far")

    def apply(self, row: str) -> None:
        """The contract: paced below the network, with deadlines. Or neither."""
        paced = f'rate = "{NETWORK // MBIT - 5}mbit"'
        plain: dict[str, tuple[str, ...]] = {name: (RX,) for name in self.hosts.all}
        is_fifo = row == FIFO_BULK
        self.hosts.apply(plain if is_fifo else plain | CONTRACT, WAY if is_fifo else (*WAY, paced))

    def under(self, row: str, case: str) -> Json:
        """One window of one application."""
        self.apply(row)
        with ExitStack() as bulk:
            if row != IDLE:
                sink = self.hosts.stacks["sink"].iperf_server()
                bulk.callback(sink.kill)
                to = self.hosts.address("sink")
                words = ("iperf3", "--client", to, "--time", "60", "--parallel", "4")
                bulk.callback(self.hosts.stacks["bulk"].spawn(*words).kill)
            time.sleep(2.0)
            used, began = self.used(), time.monotonic()
            found = {VOICE: self.voice, VIDEO: self.video, DDS: self.dds}[case]()
            seconds = time.monotonic() - began
            for number, (after, before) in enumerate(zip(self.used(), used, strict=True), 1):
                found[f"CPU of switch {number}"] = 100 * (after - before) / seconds
            return found

    def used(self) -> list[float]:
        """CPU time of both switches, s."""
        files = [Path(f"/proc/{host.switch.pid}/schedstat") for host in self.hosts.hosts]
        threads = [list(file.parent.glob("task/*/schedstat")) for file in files]
        return [sum(int(task.read_text().split()[0]) for task in tasks) / 1e9 for tasks in threads]

    def captured(self, programs: Callable[[], None]) -> Json:
        """RTP of `app` while these programs run."""
        ends = []
        for stack in (self.app, self.far):
            file = stack.folder / "rtp.pcap"
            words = ("tcpdump", "-i", "eth0", "--nano", "--immediate-mode", "-U", "-w", str(file), "udp")
            process = stack.spawn(*words)
            process.wait_for("tcpdump", partial(_listens, process))
            ends.append((process, file))
        programs()
        time.sleep(0.5)
        for process, _ in ends:
            process.stop()
        sent, received = (file.read_bytes() for _, file in ends)
        return asdict(rtp.stream(sent, received, self.here, DEADLINE))

    def voice(self) -> Json:
        """A call of eight seconds."""
        return self.captured(self.call)

    def video(self) -> Json:
        """Eight seconds of 25 pictures a second."""
        return self.captured(self.film)

    def call(self) -> None:
        """`far` answers, `app` calls and talks."""
        scenario = self.hosts.folder / "call.xml"
        done = subprocess.run(["sipp", "-sd", "uac_pcap"], capture_output=True, text=True, check=False)
        scenario.write_text(re.sub(r'"pcap/g711a\.pcap"', f'"{AUDIO}"', _without_dtmf(done.stdout)))
        answer = self.far.spawn("sipp", "-sn", "uas", "-i", self.there, "-nostdin", "-rtp_echo")
        try:
            time.sleep(0.5)
            words = (
                "sipp",
                "-sf",
                str(scenario),
                "-i",
                self.here,
                "-m",
                "1",
                "-nostdin",
                f"{self.there}:5060",
            )
            caller = self.app.spawn(*words)
            if caller.popen.wait(SECONDS + 30) != 0:
                raise RuntimeError(f"the call failed:\n{caller.output()[-600:]}")
        finally:
            answer.kill()

    def film(self) -> None:
        """`app` sends pictures to `far`, which shows them nowhere."""
        port = str(VIDEO_PORT)
        caps = "application/x-rtp,media=video,clock-rate=90000,encoding-name=JPEG"
        play = f"udpsrc port={port} caps={caps} ! rtpjitterbuffer latency=40 ! rtpjpegdepay ! fakesink"
        show = self.far.spawn("gst-launch-1.0", "-q", *play.split())
        try:
            time.sleep(1.0)
            pictures = "video/x-raw,format=I420,width=320,height=240,framerate=25/1"
            film = (
                f"videotestsrc is-live=true num-buffers={25 * SECONDS} ! {pictures} ! jpegenc quality=60"
                f" ! rtpjpegpay mtu=1200 ! udpsink host={self.there} port={port}"
            )
            camera = self.app.spawn("gst-launch-1.0", "-q", *film.split())
            if camera.popen.wait(SECONDS + 30) != 0:
                raise RuntimeError(f"the camera failed:\n{camera.output()[-600:]}")
        finally:
            show.kill()

    def dds(self) -> Json:
        """1000 pings a second."""
        pong = self.far.spawn(*dds(self.there, self.here, "pong"))
        try:
            time.sleep(0.5)
            words = dds(self.here, self.there, "-D", str(SECONDS + 1))
            ping = self.app.spawn(*words, "ping", "1kHz", "size", "158")
            ping.popen.wait(SECONDS + 30)
            found = reports.ddsperf(ping.output())
            return {name: found[name] for name in ("p50", "p99", "max", "lost")}
        finally:
            pong.kill()


def _listens(process: Process) -> bool:
    return "listening" in process.output()


def _without_dtmf(scenario: str) -> str:
    """The call without its key press at the end: the first action that plays a file stays."""
    parts = re.split(r"(<nop>.*?</nop>)", scenario, flags=re.DOTALL)
    plays = [part for part in parts if part.startswith("<nop>") and "play_pcap" in part]
    return "".join(part for part in parts if part not in plays[1:])


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    group.add_argument("--rounds", type=int, default=3, metavar="N", help="3")
    skew.add_options(group)


UNITS = {"sent": "", "lost": "", "late": "", "CPU of switch 1": "%", "CPU of switch 2": "%"}


def run(context: Context) -> Result:
    """Each application in each row, in turns."""
    cases = [case for case in NEEDS if context.wants(case) and shutil.which(NEEDS[case][0])]
    missing = [f"{program} ({package})" for program, package in NEEDS.values() if not shutil.which(program)]
    if not cases:
        raise Missing(f"not installed: {', '.join(missing)}; scripts/setup bench")
    stage = Stage(context)
    contenders = [Contender(row, partial(stage.under, row)) for row in (IDLE, FIFO_BULK, CONTRACT_BULK)]
    windows = interleave(None, contenders, cases, context.options.rounds)
    result = Result(windows=list(windows))
    for case in cases:
        names = next(window.values for window in windows if window.case == case)
        result.figures += [
            Figure(
                f"{case}: {value}", row.name, UNITS.get(value, "us"), samples(windows, row.name, case, value)
            )
            for value in names
            for row in contenders
        ]
    stage.hosts.underlay.rules.end()
    result.notes += [f"Not measured, since it is not installed: {name}." for name in missing]
    return result


SCENE = Scene(
    name="between_applications",
    title="Applications between hosts, beside bulk traffic",
    about=(
        "A voice call (sipp: speech in G.711, 20 ms a packet), a video stream (GStreamer: JPEG, 25 pictures "
        "a second) and DDS (ddsperf, 1,000 pings a second) from one host to another, over a network of 100 "
        "Mbit/s with a FIFO of 1,000 frames, which four TCP connections fill. Delays of RTP packets are one "
        "way, from the sender's interface to the receiver's; late are those above 20 ms."
    ),
    order=961,
    run=run,
    default=False,
    has_cases=True,
    add_options=add_options,
    programs=("tidegate", "tidegate-bench"),
)
