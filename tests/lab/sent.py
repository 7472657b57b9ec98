"""Sends so many datagrams of so many bytes by a device, and waits for no answer; run with python3 in a guest.

sent.py DEVICE COUNT SIZE: prints the bytes of the Ethernet frames it has sent, without FCS.
"""

import socket
import struct
import sys


def main() -> None:
    """Frames that the device's driver and NIC see as they are: no segmentation is left to them."""
    device, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    link.bind((device, 0))
    source = link.getsockname()[4]
    # No machine has this address; the local experimental Ethertype.
    frame = bytes([2, 0, 0, 0, 0, 0x99]) + source + struct.pack("!H", 0x88B5) + bytes(size - 14)
    for _ in range(count):
        link.send(frame)
    print(count * size)


if __name__ == "__main__":
    main()
