"""Sends or receives from one moment of the clock to another: `python3 ends.py send|receive ...`.

Standard library only.
"""

import socket
import sys
import time
from contextlib import suppress

PORT = 5001
TCP_WIRE, UDP_WIRE = 1514 / 1448, 1514 / 1472
DATAGRAM, UDP_SEGMENT, UDP_GRO = 1472, 103, 104


def send(kind: str, to: str, start: float, stop: float, mbps: float) -> None:
    """Sends from `start` to `stop`: TCP as fast as it can, UDP at `mbps` in super-frames."""
    time.sleep(max(0.0, start - time.monotonic()))
    if kind == "tcp":
        stream = socket.create_connection((to, PORT))
        stream.settimeout(1.0)
        piece = bytes(256 * 1024)
        while time.monotonic() < stop:
            with suppress(TimeoutError):
                stream.send(piece)
        return
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.connect((to, PORT))
    datagrams.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, DATAGRAM)
    piece = bytes(DATAGRAM * 44)
    due = time.monotonic()
    while (now := time.monotonic()) < stop:
        # Up to 20 ms without a CPU are made up for.
        due = max(due, now - 0.02)
        while due < now:
            with suppress(OSError):
                datagrams.send(piece)
            due += len(piece) * UDP_WIRE * 8 / (mbps * 1e6)
        time.sleep(0.0005)


def receive(kind: str, stop: float) -> None:
    """Prints the clock and the wire bytes received so far, about every 20 ms."""
    buffer = bytearray(1 << 20)
    if kind == "tcp":
        listener = socket.create_server(("", PORT))
        print("ready", flush=True)
        source, _ = listener.accept()
        wire = TCP_WIRE
    else:
        source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        source.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_RCVBUFFORCE", 33), 16 << 20)
        source.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        source.bind(("", PORT))
        print("ready", flush=True)
        wire = UDP_WIRE
    source.settimeout(0.02)
    total, last = 0.0, 0.0
    while (now := time.monotonic()) < stop:
        if now > last + 0.02:
            print(now, round(total), flush=True)
            last = now
        with suppress(TimeoutError):
            total += source.recv_into(buffer) * wire
    print(stop, round(total), flush=True)


def main() -> None:
    """The sender or the receiver."""
    match sys.argv[1:]:
        case ["send", kind, to, start, stop, mbps]:
            send(kind, to, float(start), float(stop), float(mbps))
        case ["receive", kind, stop]:
            receive(kind, float(stop))
        case words:
            sys.exit(f"ends.py: unknown arguments {words}")


if __name__ == "__main__":
    main()
