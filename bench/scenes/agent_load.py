"""The agent under load: waits of an honest client, time of planning, and the cost of an idle agent.

Slow clients say half a request, announce a body that never comes, or ask for much and read none of it. One
that is disconnected comes back after 0.1 s. As root, they are another user's than the honest one, and then
the same user's; otherwise the latter only.
"""

import json
import os
import resource
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Process
from pathlib import Path

from harness import options
from harness.model import Context, OptionGroup, Result, Scene
from harness.report import table

STRANGER = 4242
"""The user of the slow clients."""
QUESTIONS = 20
"""Requests of the honest client, one after the other, half a second apart."""
PATIENCE = 120.0
"""The honest client sends no request after this, seconds."""
KINDS = ("half a head", "no body", "reads nothing")
SETTLED = 5
"""An agent counts as idle this many seconds after its contracts are in force."""
IDLE = 20
"""How long an idle agent is measured, seconds."""
MUCH = 1000
"""vNICs of a plan whose answer is longer than a socket's buffer."""


def ask(api: Path, method: str, path: str, body: bytes = b"") -> bytes:
    """The answer to one request."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(api))
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        with suppress(BrokenPipeError):
            client.sendall(head.encode() + body)
        answer = bytearray()
        while part := client.recv(1 << 20):
            answer += part
    return bytes(answer)


def took(api: Path, method: str, path: str, body: bytes = b"") -> float:
    """Seconds until a request was answered with 200."""
    began = time.monotonic()
    while not (answer := ask(api, method, path, body)).startswith(b"HTTP/1.1 200"):
        # The agent answered that it is busy: an honest client tries again.
        assert answer[:12] in (b"", b"HTTP/1.1 503"), answer[:200]
        time.sleep(0.01)
    return time.monotonic() - began


@contextmanager
def agent(binary: Path) -> Iterator[Path]:
    """The socket of the API of `agent_process`."""
    with agent_process(binary) as (api, _):
        yield api


@contextmanager
def agent_process(binary: Path) -> Iterator[tuple[Path, int]]:
    """An agent with a switch, in a network namespace of its own if it may: its API's socket, its process."""
    own = ["unshare", "--net"]
    if subprocess.run([*own, "true"], capture_output=True, check=False).returncode:
        own = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "etc").mkdir()
        control, api = folder / "switch.sock", folder / "api.sock"
        words: list[str | Path] = [
            "--config",
            folder / "etc",
            "--state",
            folder / "state",
            "--switch",
            control,
            "--socket-root",
            folder,
        ]
        with (folder / "log").open("w") as log:
            switch = subprocess.Popen([binary, "switch", "--socket", control], stderr=log)
            command: list[str | Path] = [*own, binary, "agent", *words, "--api", api, "--api-mode", "666"]
            running = subprocess.Popen(command, stderr=log)
            try:
                end = time.monotonic() + 20
                while True:
                    with suppress(OSError):
                        ask(api, "GET", "/v1/host")
                        break
                    assert time.monotonic() < end, (folder / "log").read_text()
                    time.sleep(0.05)
                yield api, running.pid
            finally:
                for process in (running, switch):
                    process.terminate()
                    process.wait()


def be_slow(api: Path, count: int, user: int | None) -> None:
    """Run `count` slow clients, a third of each kind, until the process is ended."""
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    plan = contracts(MUCH, promising=False)
    words = {
        "half a head": b"GET /v1/vnics HTTP/1.1\r\nX: ",
        "no body": b"POST /v1/plan HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n",
        "reads nothing": b"POST /v1/plan HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(plan)
        + plan,
    }
    for n in range(count):
        kind = KINDS[n % len(KINDS)]
        threading.Thread(target=one_slow, args=(api, kind, words[kind]), daemon=True).start()
    threading.Event().wait()


def one_slow(api: Path, kind: str, words: bytes) -> None:
    """One slow client, without an end."""
    while True:
        with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
            client.connect(str(api))
            client.sendall(words)
            if kind == "reads nothing":
                time.sleep(60)
            while kind == "half a head":
                time.sleep(1)
                client.sendall(b"x")
            while client.recv(4096):
                pass
        # If disconnected at once, it does not come back a thousand times a second: it is slow, not many.
        time.sleep(0.1)


def waits(api: Path) -> list[float]:
    """How long the honest client waits for each answer, seconds."""
    seen: list[float] = []
    while len(seen) < QUESTIONS and sum(seen) < PATIENCE:
        seen.append(took(api, "GET", "/v1/host"))
        time.sleep(0.5)
    return seen


def slow_clients(context: Context, binary: Path) -> str:
    """The honest client's waits: alone, beside another user's slow clients, and beside its own user's."""
    count = context.options.slow
    users = {"none": -1, "another user": STRANGER, "the same user": None}
    if os.geteuid() != 0:
        del users["another user"]
    rows = []
    for name, user in users.items():
        with agent(binary) as api:
            slow = Process(target=be_slow, args=(api, count, user))
            if user != -1:
                slow.start()
                time.sleep(2)
            seen = waits(api)
            rows.append((name, f"{statistics.median(seen) * 1e3:.1f}", f"{max(seen) * 1e3:.1f}"))
            context.say(f"slow clients of {name}: median {rows[-1][1]} ms, worst {rows[-1][2]} ms")
            if user != -1:
                slow.kill()
                slow.join()
    return table((f"GET /v1/host, {count} slow clients of", "median [ms]", "worst [ms]"), rows)


def contracts(count: int, promising: bool) -> bytes:
    """`count` contracts on netdevs; with `promising`, each has a minimum towards the next."""
    text = []
    for n in range(count):
        mac = ":".join(f"{byte:02x}" for byte in (2, *n.to_bytes(4, "big"), 1))
        text.append(f'[vnic.v{n}]\nattach={{netdev="n{n}"}}\nmac="{mac}"\nsegment=0\n')
        if promising:
            text.append(f'to=["v{(n + 1) % count}"]\ntx={{min="1kbit"}}\nrx={{max="1gbit"}}\n')
    return "".join(text).encode()


def planning(context: Context, binary: Path) -> str:
    """How long `POST /v1/plan` takes, and how long readers wait meanwhile."""
    rows: list[tuple[str, ...]] = []
    for count in context.options.vnics:
        with agent(binary) as api:
            plain, promising = (contracts(count, promising) for promising in (False, True))
            began = time.monotonic()
            answer = json.loads(ask(api, "POST", "/v1/plan", plain).partition(b"\r\n\r\n")[2])
            bound = [why for why in answer.get("refusals", [answer]) if "a host keeps at most" in str(why)]
            if bound or "error" in answer:
                why = bound[0] if bound else answer["error"]
                rows.append((str(count), f"{time.monotonic() - began:.2f}", str(why), "", ""))
                continue
            seconds = [took(api, "POST", "/v1/plan", text) for text in (plain, promising)]
            planner = Process(target=took, args=(api, "POST", "/v1/plan", plain))
            planner.start()
            reader = [took(api, "GET", "/v1/host")]
            while planner.is_alive():
                reader.append(took(api, "GET", "/v1/host"))
            planner.join()
            per_vnic, worst = f"{seconds[0] / count * 1e6:.1f}", f"{max(reader) * 1e3:.1f}"
            rows.append((str(count), f"{seconds[0]:.2f}", f"{seconds[1]:.2f}", per_vnic, worst))
            context.say(f"POST /v1/plan, {count} vNICs: {seconds[0]:.2f} s")
    head = (
        "POST /v1/plan, vNICs",
        "plain [s]",
        "with min [s]",
        "us a vNIC",
        "GET /v1/host meanwhile, worst [ms]",
    )
    return table(head, rows)


def spent(process: int) -> tuple[float, int]:
    """CPU time of a process so far, s, and its memory, kB."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    status = Path(f"/proc/{process}/status").read_text()
    return ticks / os.sysconf("SC_CLK_TCK"), int(status.partition("VmRSS:")[2].split()[0])


def idle(context: Context, binary: Path) -> list[str]:
    """Sentences: the cost of an agent with `--idle` vNICs at the switch, none of which has a VM."""
    count = context.options.idle
    said = []
    # The switch keeps descriptors for the memory that each vNIC's front end may share.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if count > (most := hard // 50):
        said.append(f"idle: there are {hard} descriptors (ulimit -Hn), so {most} vNICs in place of {count}")
        count = most
    with agent_process(binary) as (api, process):
        text = []
        for n in range(count):
            mac = ":".join(f"{byte:02x}" for byte in (2, *n.to_bytes(4, "big"), 1))
            attach = f'attach={{vhost-user="{api.parent}/{n}"}}'
            text.append(f'[vnic.v{n}]\n{attach}\nmac="{mac}"\nsegment=1\ntx={{max="20mbit"}}\n')
        answer = ask(api, "POST", "/v1/apply", "".join(text).encode())
        assert answer.startswith(b"HTTP/1.1 200"), answer[:2000]
        time.sleep(SETTLED)
        before, _ = spent(process)
        time.sleep(IDLE)
        after, memory = spent(process)
        share = (after - before) / IDLE * 100
        said.append(f"{count} idle vNICs, for {IDLE} s: {share:.1f} % of a CPU, memory {memory / 1e3:.0f} MB")
        windows = ("/v1/vnics?last=1m",) if b"last" in ask(api, "GET", "/openapi.json") else ()
        for path in ("/v1/vnics", *windows):
            seen = [took(api, "GET", path) for _ in range(QUESTIONS)]
            median, worst = statistics.median(seen) * 1e3, max(seen) * 1e3
            said.append(f"{count} idle vNICs, GET {path}: median {median:.0f} ms, worst {worst:.0f} ms")
    return said


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    options.add_binary(group)
    group.add_argument(
        "--slow", type=int, default=300, metavar="N", help="slow clients; 300; 0 leaves them out"
    )
    group.add_argument(
        "--vnics",
        type=options.numbers,
        default=[1000, 2000, 4000, 8000],
        metavar="N,N,...",
        help="contracts to plan; 1000,2000,4000,8000; '' leaves them out",
    )
    group.add_argument(
        "--idle", type=int, default=1000, metavar="N", help="idle vNICs; 1000; 0 leaves them out"
    )


def run(context: Context) -> Result:
    """All three parts, except those that are left out."""
    binary = options.binary(context)
    result = Result()
    if context.options.slow:
        result.tables.append(slow_clients(context, binary))
    if context.options.vnics:
        result.tables.append(planning(context, binary))
    if context.options.idle:
        result.notes += idle(context, binary)
    return result


SCENE = Scene(
    name="agent_load",
    title="The agent under load",
    about=(
        "How long the agent's API keeps an honest client waiting while others are slow, how long planning "
        "takes, and what an agent costs while nothing happens."
    ),
    order=930,
    run=run,
    default=False,
    add_options=add_options,
)
