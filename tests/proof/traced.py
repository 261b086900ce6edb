"""A group under strace, and the proof of each acknowledged value from its system calls.

The calls of every thread are in a file of their own, in order, with start time and duration. The tracer strace holds a
thread at the end of each call until it has noted the time, and at the beginning of the next. So a call that had to wait
for another one, in any process, begins later on the same clock.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dledger_chaos.subjects.group import SubjectGroup

SLOW_SYNC_US = 20_000
"""Time in µs that is added to every fdatasync, so that an answer that does not wait for it cannot be late by chance."""
STRACE = (
    "strace", "-D", "-ff", "-ttt", "-T", "-yy", "-s", "1048576", "--seccomp-bpf", "--quiet=all",
    "-e", "trace=pwrite64,pwritev,pwritev2,fdatasync,fsync,sendto,sendmsg,write,writev",
    "-e", f"inject=fdatasync,fsync:delay_exit={SLOW_SYNC_US}",
    "-e", "signal=none",
)  # fmt: skip

_CALL = re.compile(
    r"^(?P<at>\d+\.\d+) (?P<name>\w+)\(\d+<(?P<file>[^>]*(?:->[^>]*)?)>(?P<rest>.*)<(?P<took>\d+\.\d+)>$"
)
_VALUE = re.compile(r"v\d{5}-[0-9a-f]{8}")
_ACKNOWLEDGED = re.compile(r'\\"id\\":\\"(v\d{5}-[0-9a-f]{8})\\",\\"ok\\":true')


class Call(NamedTuple):
    """System call on a file or socket. Times are in seconds of one clock."""

    name: str
    file: str
    began_at: float
    ended_at: float
    text: str


class Proof(NamedTuple):
    """Time at which each node had a value on disk, and time at which the leader answered the client."""

    synced_at: dict[str, float]
    told_at: float

    @property
    def synced_before(self) -> set[str]:
        """Return the nodes whose sync of the value's bytes had returned before the answer was sent."""
        return {node_id for node_id, at in self.synced_at.items() if at <= self.told_at}


async def append(address: tuple[str, int], values: list[str], *, in_flight: int) -> set[str]:
    """Append values, some at a time, each as its own id. Return those that were acknowledged."""
    reader, writer = await asyncio.open_connection(*address)
    acknowledged: set[str] = set()
    waiting = iter(values)
    open_requests = 0
    try:
        while True:
            while open_requests < in_flight and (value := next(waiting, None)) is not None:
                request = {"id": value, "op": "append", "key": "log", "value": value}
                writer.write(json.dumps(request).encode() + b"\n")
                open_requests += 1
            if not open_requests:
                return acknowledged
            answer = json.loads(await reader.readline())
            open_requests -= 1
            if answer["ok"]:
                acknowledged.add(answer["id"])
    finally:
        writer.close()


def calls(traces: Path, node_id: str) -> Iterator[list[Call]]:
    """Yield the calls of each of a node's threads."""
    for path in sorted(traces.glob(f"{node_id}.*")):
        found = (_CALL.match(line) for line in path.read_text(errors="replace").splitlines())
        yield [
            Call(each["name"], each["file"], float(each["at"]), float(each["at"]) + float(each["took"]), each["rest"])
            for each in found
            if each
        ]


def synced(traces: Path, node_id: str) -> dict[str, float]:
    """Return for each value the end of the first sync that began after the value's bytes were written to the log."""
    written: dict[str, tuple[str, float]] = {}
    syncs: list[Call] = []
    for thread in calls(traces, node_id):
        for call in thread:
            if "/commitlog/" not in call.file:
                continue
            if call.name in ("fdatasync", "fsync"):
                syncs.append(call)
            else:
                for value in _VALUE.findall(call.text):
                    written.setdefault(value, (call.file, call.ended_at))
    syncs.sort(key=lambda call: call.began_at)
    found = {}
    for value, (file, at) in written.items():
        covering = [call.ended_at for call in syncs if call.file == file and call.began_at >= at]
        if covering:
            found[value] = min(covering)
    return found


def answered(traces: Path, leader: str) -> dict[str, float]:
    """Return for each value the time at which the leader began to send its acknowledgement."""
    found: dict[str, float] = {}
    for thread in calls(traces, leader):
        for call in thread:
            if call.name in ("sendto", "sendmsg", "write", "writev") and call.file.startswith("TCP"):
                for value in _ACKNOWLEDGED.findall(call.text):
                    found.setdefault(value, call.began_at)
    return found


def proofs(traces: Path, group: SubjectGroup, leader: str) -> dict[str, Proof]:
    """Return the proof of every acknowledged value."""
    disks = {node_id: synced(traces, node_id) for node_id in group.node_ids}
    return {
        value: Proof({node_id: disk[value] for node_id, disk in disks.items() if value in disk}, told_at)
        for value, told_at in answered(traces, leader).items()
    }
