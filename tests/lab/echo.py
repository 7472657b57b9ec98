"""One TCP connection to an echo service, all the time: every byte must come back as it was sent.

python3 echo.py ADDRESS PORT    prints "BLOCKS SILENCE-BEFORE-IN-SECONDS" line by line
"""

import socket
import struct
import sys
import time

BLOCK = 4096
AHEAD = 16


def block(number: int) -> bytes:
    """The n-th block: its number, again and again."""
    return struct.pack(">Q", number) * (BLOCK // 8)


def main() -> None:
    """Run until killed, or until something else comes back."""
    address, port = sys.argv[1], int(sys.argv[2])
    with socket.create_connection((address, port), timeout=60) as stream:
        for number in range(AHEAD):
            stream.sendall(block(number))
        number, last, pending = 0, time.monotonic(), b""
        while True:
            data = stream.recv(1 << 16)
            if not data:
                sys.exit("the connection ended")
            now = time.monotonic()
            silence, last = now - last, now
            pending += data
            while len(pending) >= BLOCK:
                if pending[:BLOCK] != block(number):
                    sys.exit(f"block {number} came back as something else")
                pending = pending[BLOCK:]
                stream.sendall(block(number + AHEAD))
                number += 1
            print(number, f"{silence:.6f}", flush=True)


if __name__ == "__main__":
    main()
