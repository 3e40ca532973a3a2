#!/usr/bin/python3
"""64 connections, each with 256 requests of 1 MiB in flight, over a volume that small scattered writes fragmented.

usage: flood.py URI SECONDS
"""

import random
import sys
import time

import nbd

CONNECTIONS, DEPTH, LARGE, SMALL = 64, 256, 1 << 20, 4096


def fragment(uri, count):
    """Writes `count` single blocks all over the volume, 64 at a time."""
    handle = nbd.NBD()
    handle.connect_uri(uri)
    size, data = handle.get_size(), nbd.Buffer.from_bytearray(bytearray(random.randbytes(SMALL)))
    pending = []
    for _ in range(count):
        pending.append(handle.aio_pwrite(data, random.randrange(size // SMALL) * SMALL))
        while len(pending) >= 64:
            handle.poll(1000)
            pending = [cookie for cookie in pending if not handle.aio_command_completed(cookie)]
    while pending:
        handle.poll(1000)
        pending = [cookie for cookie in pending if not handle.aio_command_completed(cookie)]
    handle.shutdown()
    return size


def flood(uri, size, seconds):
    """Keeps every connection full for `seconds`; reads and writes half and half. Returns the requests completed."""
    handles = []
    for _ in range(CONNECTIONS):
        handle = nbd.NBD()
        handle.connect_uri(uri)
        handles.append((handle, []))
    data = nbd.Buffer.from_bytearray(bytearray(random.randbytes(LARGE)))
    # Reads land in one shared buffer: nobody looks at the bytes here, and 16 GiB of them would not fit.
    sink = nbd.Buffer(LARGE)
    completed, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        for handle, pending in handles:
            while len(pending) < DEPTH:
                offset = random.randrange(size // LARGE) * LARGE
                write = random.random() < 0.5
                pending.append(handle.aio_pwrite(data, offset) if write else handle.aio_pread(sink, offset))
            handle.poll(0)
            before = len(pending)
            pending[:] = [cookie for cookie in pending if not handle.aio_command_completed(cookie)]
            completed += before - len(pending)
    return completed


def main():
    uri, seconds = sys.argv[1], float(sys.argv[2])
    size = fragment(uri, 200_000 if seconds > 5 else 5_000)
    print(f"{flood(uri, size, seconds)} requests of 1 MiB completed")


if __name__ == "__main__":
    main()
