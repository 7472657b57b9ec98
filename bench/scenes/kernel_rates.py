#!/usr/bin/env python3
"""Measures the rates that the kernel place keeps, beside libvirt's recipe: set against achieved, on the wire.

bench/kernel-rates [--rates 8,1000] [--seconds 10] [--burst 16kB] [--method police] [--kinds tcp,udp,gso]
                   [--congestion cubic] [--only tx] [--lab]

As root. The guest is a network namespace behind a veth; its frames are super-frames of up to 64 KiB, as a
VM's are. What arrives is counted by the receiving program, after the burst, in wire bytes: 1514 for
each 1448 of TCP (timestamps are on) or 1472 of UDP. `tcp8` is eight connections. Where this kernel lacks
what libvirt's recipe takes (act_police, sfq, fw), its columns are empty; `--lab` runs it all in an emulated
guest whose kernel has them. `stolen` is the share of processor time that this machine's host took away:
tokens that come meanwhile are lost once the bucket is full. Needs `cargo build --release`.
"""

import argparse
import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from lab.guest import Guest  # noqa: E402
from lab.host import Host  # noqa: E402

INSIDE = "TIDEGATE_BENCH_NETNS"
HOST, GUEST, PORT = "10.9.0.1", "10.9.0.2", 5001
NETDEV = "vnet3"
RATES = "8,16,32,64,128,256,512,1000,5000"
CONGESTION = "TIDEGATE_BENCH_CONGESTION"
DATAGRAM, SEGMENT, FRAME = 1472, 1448, 1514
UDP_SEGMENT, UDP_GRO = 103, 104
WARM_UP = 2.0
MODULES = "veth ifb sch_htb sch_ingress sch_sfq cls_u32 cls_bpf cls_fw act_mirred act_police"

Row = dict[str, str | float | None]


def connections(kind: str) -> int:
    """Of TCP; 0 of UDP."""
    return int(kind[3:] or 1) if kind.startswith("tcp") else 0


def send_tcp(count: int, to: str, end: float) -> None:
    """Fills so many connections until then."""
    piece = bytes(256 * 1024)
    with selectors.DefaultSelector() as ready:
        for _ in range(count):
            stream = socket.socket()
            if congestion := os.environ.get(CONGESTION):
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
            stream.connect((to, PORT))
            stream.setblocking(False)
            ready.register(stream, selectors.EVENT_WRITE)
        while time.monotonic() < end:
            for key, _ in ready.select(0.1):
                try:
                    key.fileobj.send(piece)  # type: ignore[union-attr]
                except BlockingIOError:
                    continue
                except OSError:
                    # The receiver has counted enough.
                    return


def send(kind: str, to: str, seconds: float, rate: float) -> None:
    """Sends more than `rate`, Mbit/s."""
    end = time.monotonic() + seconds
    if count := connections(kind):
        return send_tcp(count, to, end)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_SNDBUFFORCE", 32), 64 << 20)
    datagrams.connect((to, PORT))
    if kind == "gso":
        datagrams.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, DATAGRAM)
    piece = bytes(DATAGRAM * (44 if kind == "gso" else 1))
    # A third above the limit, so that something waits always and little is dropped; what was missed for
    # want of a processor is made up for up to 50 ms.
    ahead = time.monotonic()
    while (now := time.monotonic()) < end:
        ahead = max(ahead, now - 0.05)
        while ahead < now:
            with contextlib.suppress(OSError):
                datagrams.send(piece)
            ahead += len(piece) * 8 / (rate * 1e6 * 4 / 3)
        time.sleep(0.001)


def receive(kind: str, seconds: float) -> None:
    """Prints how many bytes came within so many seconds, after the warm-up."""
    buffer = bytearray(1 << 20)
    if count := connections(kind):
        listener = socket.create_server(("", PORT))
        print("ready", flush=True)
        sources = [listener.accept()[0] for _ in range(count)]
    else:
        source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        source.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_RCVBUFFORCE", 33), 16 << 20)
        source.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        source.bind(("", PORT))
        print("ready", flush=True)
        source.recv_into(buffer)
        sources = [source]
    ready = selectors.DefaultSelector()
    for source in sources:
        ready.register(source, selectors.EVENT_READ)

    def until(end: float) -> int:
        total = 0
        while time.monotonic() < end:
            for key, _ in ready.select(0.1):
                total += key.fileobj.recv_into(buffer)  # type: ignore[union-attr]
        return total

    until(time.monotonic() + WARM_UP)
    start = time.monotonic()
    total = until(start + seconds)
    print(total, time.monotonic() - start, flush=True)


def stolen() -> tuple[int, int]:
    """Processor time that whoever runs this machine took away, and all of it, ticks."""
    words = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return words[7], sum(words)


def measure(kind: str, seconds: float, to: str, rate: float, guest: list[str]) -> tuple[float, float]:
    """Mbit/s on the wire, and the share of processor time that was taken away meanwhile."""
    receiver, sender = ([], guest) if to == HOST else (guest, [])
    me = [sys.executable, __file__]
    with subprocess.Popen(
        [*receiver, *me, "receive", kind, str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
    ) as there:
        assert there.stdout is not None
        assert there.stdout.readline().strip() == "ready"
        before = stolen()
        here = subprocess.Popen([*sender, *me, "send", kind, to, str(seconds + WARM_UP + 1), str(rate)])
        words = there.stdout.readline().split()
        here.kill()
        here.wait()
        taken, ticks = (now - then for now, then in zip(stolen(), before, strict=True))
    total, took = int(words[0]), float(words[1])
    wire = FRAME / (SEGMENT if connections(kind) else DATAGRAM)
    return total * wire * 8 / took / 1e6, taken / ticks


def tc(words: str) -> None:
    """Run tc; an error where it cannot."""
    subprocess.run(["tc", *words.split()], check=True, capture_output=True)


@contextlib.contextmanager
def tidegate(host: Host, rate: str, burst: str, method: str) -> Iterator[None]:
    """A contract of this rate, both ways."""
    side = f'max = "{rate}mbit"' + (f', burst = "{burst}"' if burst else "")
    host.apply(
        f'[vnic.guest]\nattach = {{ netdev = "{NETDEV}" }}\nmac = "52:54:00:00:00:01"\nsegment = 0\n'
        f'tx = {{ {side}, method = "{method}" }}\nrx = {{ {side} }}\n'
    )
    yield
    host.cli("vnic", "rm", "guest")


@contextlib.contextmanager
def libvirt(rate: str) -> Iterator[None]:
    """What libvirt makes of a `<bandwidth>` that has averages alone (virnetdevbandwidth.c, libvirt 9.0).

    A burst that is not stated is as many kB as the average has kB/s.
    """
    average = round(float(rate) * 1000 / 8)
    try:
        tc(f"qdisc add dev {NETDEV} root handle 1: htb default 1")
        tc(f"class add dev {NETDEV} parent 1: classid 1:1 htb rate {average}kbps quantum 60000")
        tc(f"qdisc add dev {NETDEV} parent 1:1 handle 2: sfq perturb 10")
        tc(f"filter add dev {NETDEV} parent 1:0 protocol all prio 1 handle 1 fw flowid 1")
        tc(f"qdisc add dev {NETDEV} ingress")
        tc(
            f"filter add dev {NETDEV} parent ffff: protocol all u32 match u32 0 0 police "
            f"rate {average}kbps burst {average}kb mtu 64kb drop flowid :1"
        )
        yield
    finally:
        for words in f"qdisc del dev {NETDEV} root", f"qdisc del dev {NETDEV} ingress":
            with contextlib.suppress(subprocess.CalledProcessError):
                tc(words)


def rows(arguments: argparse.Namespace, host: Host, guest: list[str]) -> Iterator[Row]:
    """One row per rate, direction and kind of traffic."""
    for rate in arguments.rates.split(","):
        cases = [
            (way, kind)
            for way in ("tx", "rx")
            if arguments.only in ("", way)
            for kind in arguments.kinds.split(",")
        ]

        def all_of(rate: str = rate, cases: list[tuple[str, str]] = cases) -> list[tuple[float, float]]:
            ends = {"tx": HOST, "rx": GUEST}
            return [measure(kind, arguments.seconds, ends[way], float(rate), guest) for way, kind in cases]

        with tidegate(host, rate, arguments.burst, arguments.method):
            ours = all_of()
        theirs: list[tuple[float, float]] | None = None
        with contextlib.suppress(subprocess.CalledProcessError), libvirt(rate):
            theirs = all_of()
        for i, (way, kind) in enumerate(cases):
            yield {
                "set_mbps": float(rate),
                "way": way,
                "kind": kind,
                "tidegate_mbps": ours[i][0],
                "tidegate_stolen": ours[i][1],
                "libvirt_mbps": theirs[i][0] if theirs else None,
                "libvirt_stolen": theirs[i][1] if theirs else None,
            }


def cell(row: Row, recipe: str) -> str:
    """A rate, how far it is off, and the processor time that was taken away meanwhile."""
    got, wanted, taken = row[f"{recipe}_mbps"], row["set_mbps"], row[f"{recipe}_stolen"]
    if not isinstance(got, float) or not isinstance(wanted, float) or not isinstance(taken, float):
        return ""
    return f"{got:9.2f}  {(got / wanted - 1) * 100:+7.2f}%  {taken:6.1%}"


def bench(arguments: argparse.Namespace) -> None:
    """Within a namespace of its own: the host's."""
    with (
        subprocess.Popen(["unshare", "--net", "sleep", "100000"]) as holder,
        tempfile.TemporaryDirectory() as folder,
    ):
        try:
            time.sleep(0.5)
            guest = ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
            subprocess.run(
                f"ip link add {NETDEV} type veth peer name eth0 netns {holder.pid}\n"
                f"ip addr add {HOST}/24 dev {NETDEV}; ip link set {NETDEV} up; ip link set lo up\n"
                f"inside='{' '.join(guest)}'; $inside ip link set lo up\n"
                f"$inside ip addr add {GUEST}/24 dev eth0; $inside ip link set eth0 up",
                shell=True,
                check=True,
            )
            with Host(Path(folder), agent_wrapper=()) as host:
                if not arguments.json:
                    print(
                        f"{'Mbit/s':>7}  way  kind  "
                        f"{'tidegate':>9}  {'off':>8}  {'stolen':>6}  "
                        f"{'libvirt':>9}  {'off':>8}  {'stolen':>6}",
                        flush=True,
                    )
                for row in rows(arguments, host, guest):
                    line = f"{row['set_mbps']:>7.0f}  {row['way']:3}  {row['kind']:4}  "
                    line += f"{cell(row, 'tidegate')}  {cell(row, 'libvirt')}".rstrip()
                    print(json.dumps(row) if arguments.json else line.rstrip(), flush=True)
        finally:
            holder.kill()


def in_lab(words: list[str]) -> None:
    """The same, in a guest with Debian's kernel."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Guest(Path(folder) / "g", memory_mb=1536, modules=MODULES.split()) as guest,
    ):
        print(f"in an emulated guest, Linux {guest.run('uname -r').strip()}", flush=True)
        print(
            guest.run(f"cd {ROOT} && bench/kernel-rates {' '.join(words)}", timeout=7200),
            end="",
        )


def main() -> None:
    """One of three: the program, its sender, its receiver."""
    match sys.argv[1:]:
        case ["send", kind, to, seconds, rate]:
            return send(kind, to, float(seconds), float(rate))
        case ["receive", kind, seconds]:
            return receive(kind, float(seconds))
    parser = argparse.ArgumentParser(
        prog="bench/kernel-rates",
        description="Rates set and achieved, kernel place and libvirt's recipe.",
    )
    parser.add_argument("--rates", default=RATES, help="Mbit/s")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured per line, after a warm-up")
    parser.add_argument("--burst", default="", help="such as 16kB; otherwise the default of a contract")
    parser.add_argument(
        "--method",
        default="shape",
        choices=["shape", "police"],
        help="what becomes of too much that the guest sends",
    )
    parser.add_argument(
        "--kinds",
        default="tcp,udp,gso",
        help="of tcp, tcp8, udp, gso (UDP in super-frames)",
    )
    parser.add_argument(
        "--congestion",
        default="",
        help="of TCP, such as cubic; otherwise this machine's own",
    )
    parser.add_argument("--only", default="", choices=["", "tx", "rx"], help="one direction")
    parser.add_argument(
        "--lab",
        action="store_true",
        help="in an emulated guest, whose kernel has what libvirt needs",
    )
    parser.add_argument("--json", action="store_true", help="one object per line")
    arguments = parser.parse_args()
    if arguments.lab:
        return in_lab([word for word in sys.argv[1:] if word != "--lab"])
    os.environ[CONGESTION] = arguments.congestion
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--net", sys.executable, __file__, *sys.argv[1:]])
    return bench(arguments)


if __name__ == "__main__":
    main()
