"""Sends or receives as fast as it can: `python3 ends.py send|receive ...`. Standard library only."""

import contextlib
import selectors
import socket
import sys
import time

PORT = 5001
DATAGRAM = 1472
"""Payload of a full datagram, bytes."""
UDP_SEGMENT, UDP_GRO = 103, 104
WARM_UP = 2.0
"""Seconds before the receiver counts."""


def connections(kind: str) -> int:
    """Number of TCP connections of a kind of traffic; 0 for UDP."""
    return int(kind[3:] or 1) if kind.startswith("tcp") else 0


def send_tcp(count: int, to: str, end: float, congestion: str) -> None:
    """Fills `count` connections until `end`; `congestion` is empty for the machine's own."""
    piece = bytes(256 * 1024)
    with selectors.DefaultSelector() as ready:
        for _ in range(count):
            stream = socket.socket()
            if congestion:
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
                    # The receiver has ended.
                    return


def send(kind: str, to: str, seconds: float, rate: float, congestion: str) -> None:
    """Sends more than `rate`, Mbit/s."""
    end = time.monotonic() + seconds
    if count := connections(kind):
        return send_tcp(count, to, end, congestion)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_SNDBUFFORCE", 32), 64 << 20)
    datagrams.connect((to, PORT))
    if kind == "gso":
        datagrams.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, DATAGRAM)
    piece = bytes(DATAGRAM * (44 if kind == "gso" else 1))
    # A third above the limit: some frames always wait, and few are dropped. Up to 50 ms without a CPU are
    # made up for.
    ahead = time.monotonic()
    while (now := time.monotonic()) < end:
        ahead = max(ahead, now - 0.05)
        while ahead < now:
            with contextlib.suppress(OSError):
                datagrams.send(piece)
            ahead += len(piece) * 8 / (rate * 1e6 * 4 / 3)
        time.sleep(0.001)


def receive(kind: str, seconds: float) -> None:
    """Prints the bytes received within `seconds` after the warm-up, and the exact seconds."""
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


def main() -> None:
    """The sender or the receiver."""
    match sys.argv[1:]:
        case ["send", kind, to, seconds, rate, congestion]:
            send(kind, to, float(seconds), float(rate), congestion)
        case ["receive", kind, seconds]:
            receive(kind, float(seconds))
        case words:
            sys.exit(f"ends.py: unknown arguments {words}")


if __name__ == "__main__":
    main()
