"""Limits of the machine itself, measured in the same run as everything else. No message service on it can be faster."""

import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import msgspec

_BALLOON_DEVICES = "/sys/bus/virtio/drivers/virtio_balloon"
_FREE_PAGE_REPORTING_BIT = 5
_BLOCK_BYTES = 64 * 1024
_FILE_BYTES = 32 * 1024 * 1024
_COPY_BYTES = 64 * 1024 * 1024
_PING_BYTES = 1024

# The program of the other process of the round trip. It ends when its connection does.
_ECHO = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := connection.recv(int(sys.argv[2]), socket.MSG_WAITALL):
        connection.sendall(data)
"""


class MachineLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of the limits. The round trip is between two processes with blocking sockets and 1 KiB each way.

    `may_give_memory_back` is the result of the function of that name.
    """

    fdatasync_64k_us: float
    fdatasync_64k_per_s: float
    loopback_round_trip_us: float
    memory_copy_gb_per_s: float
    may_give_memory_back: bool


def measure_limits(directory: Path, seconds: float = 1.0) -> MachineLimits:
    """Measure each limit for about `seconds`. `directory` must be on the disk that the clusters will use."""
    sync_us = fdatasync_us(directory / "limits.tmp", seconds)
    return MachineLimits(
        fdatasync_64k_us=round(sync_us, 1),
        fdatasync_64k_per_s=round(1e6 / sync_us, 1),
        loopback_round_trip_us=round(loopback_round_trip_us(seconds), 1),
        memory_copy_gb_per_s=round(memory_copy_gb_per_s(seconds), 2),
        may_give_memory_back=may_give_memory_back(Path(_BALLOON_DEVICES)),
    )


def fdatasync_us(path: Path, seconds: float) -> float:
    """Return the median time of a 64 KiB append and its fdatasync, in a file that was filled with zeros before, in µs.

    A log does the same: its segments are filled ahead, so that an append changes no file size.
    """
    block = os.urandom(_BLOCK_BYTES)
    samples: list[float] = []
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for offset in range(0, _FILE_BYTES, _BLOCK_BYTES):
            os.pwrite(descriptor, bytes(_BLOCK_BYTES), offset)
        os.fsync(descriptor)
        deadline, offset = time.perf_counter() + seconds, 0
        while (began := time.perf_counter()) < deadline:
            os.pwrite(descriptor, block, offset)
            os.fdatasync(descriptor)
            samples.append(time.perf_counter() - began)
            offset = (offset + _BLOCK_BYTES) % _FILE_BYTES
    finally:
        os.close(descriptor)
        path.unlink()
    return statistics.median(samples) * 1e6


def loopback_round_trip_us(seconds: float) -> float:
    """Return the median time in µs for 1 KiB to another process over TCP on 127.0.0.1 and back."""
    samples: list[float] = []
    ping = bytes(_PING_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        port = listener.getsockname()[1]
        with subprocess.Popen([sys.executable, "-S", "-c", _ECHO, str(port), str(_PING_BYTES)]):
            connection, _ = listener.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                deadline = time.perf_counter() + seconds
                while (began := time.perf_counter()) < deadline:
                    connection.sendall(ping)
                    connection.recv(_PING_BYTES, socket.MSG_WAITALL)
                    samples.append(time.perf_counter() - began)
    return statistics.median(samples) * 1e6


def memory_copy_gb_per_s(seconds: float) -> float:
    """Return the rate in GB/s at which one thread copies 64 MiB, more than any cache holds."""
    source, target = os.urandom(_COPY_BYTES), bytearray(_COPY_BYTES)
    samples: list[float] = []
    deadline = time.perf_counter() + seconds
    while (began := time.perf_counter()) < deadline:
        target[:] = source
        samples.append(time.perf_counter() - began)
    return _COPY_BYTES / statistics.median(samples) / 1e9


def may_give_memory_back(devices: Path) -> bool:
    """Return whether the host asked for reports of free memory, to take it back (virtio 1.2, 5.5.3, feature bit 5).

    The kernel's own setting can change while it runs, and is not examined. `devices` is the folder of the driver in
    `/sys`; without it the machine has no such host.

    Memory that was taken back costs a page fault of the host at its next use. Writes to files after a few idle seconds
    are therefore several times slower than writes into memory that was just in use.
    """
    features = (device / "features" for device in devices.glob("virtio*"))
    return any(path.read_text(encoding="ascii")[_FREE_PAGE_REPORTING_BIT] == "1" for path in features)
