"""Disks that are full, fail, dawdle, rot, or are not the disk they were."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ..convergence import wait_caught_up
from ..disk.control import FULL_DISK, Rule
from ..errors import TargetError
from ..target import Target
from .base import FaultKind, Surroundings
from .power import PowerLoss

LOG_DIRECTORY: Final = "commitlog"
COPY_SUFFIX: Final = ".copy"
_HEADER_BYTES: Final = 48


@dataclass(frozen=True, slots=True)
class DiskRules:
    """Calls of `nodes` fail or are late; healed by ending that, and by starting nodes that have stopped over it."""

    nodes: tuple[str, ...]
    rules: tuple[Rule, ...]

    async def inject(self, target: Target) -> None:
        """See `Fault.inject`."""
        for node in self.nodes:
            target.disk(node).hold(self, self.rules)

    async def heal(self, target: Target) -> None:
        """See `Fault.heal`."""
        for node in self.nodes:
            target.disk(node).release(self)
        await asyncio.gather(*map(target.start_node, self.nodes))


@dataclass(frozen=True, slots=True)
class BitRot:
    """Bits of a node's log change on disk, in the half that has been durable longest; where it runs, it runs on.

    Healed by a start of the node, which repairs itself from its peers: one that runs on looks at an old segment once an
    hour only, and at the one that is being written not at all.
    """

    nodes: tuple[str, ...]
    bits: int
    running: bool
    seed: int

    async def inject(self, target: Target) -> None:
        """See `Fault.inject`."""
        (node,) = self.nodes
        view = await target.status(node)
        if view is None:
            raise TargetError(f"{node} does not answer: what is durable there is not known")
        if not self.running:
            await target.kill(self.nodes)
        directory = _directory(target, node) / LOG_DIRECTORY
        end = (view.first_position + view.durable_position) // 2
        await asyncio.to_thread(_flip, directory, view.first_position, end, self.bits, random.Random(self.seed))

    async def heal(self, target: Target) -> None:
        """See `Fault.heal`."""
        await target.kill(self.nodes)
        await asyncio.gather(*map(target.start_node, self.nodes))


@dataclass(frozen=True, slots=True)
class LostSegment:
    """A segment of a stopped node's log is cut in half, or is gone; healed by starting the node."""

    nodes: tuple[str, ...]
    how: Literal["truncated", "deleted"]
    seed: int

    async def inject(self, target: Target) -> None:
        """See `Fault.inject`."""
        (node,) = self.nodes
        await target.kill(self.nodes)
        segments = _segments(_directory(target, node) / LOG_DIRECTORY)
        segment = random.Random(self.seed).choice(segments)
        if self.how == "deleted":
            segment.unlink()
        else:
            os.truncate(segment, segment.stat().st_size // 2)

    async def heal(self, target: Target) -> None:
        """See `Fault.heal`."""
        await asyncio.gather(*map(target.start_node, self.nodes))


@dataclass(frozen=True, slots=True)
class OldCopy:
    """A node's directory is copied while it is stopped for a moment, and put back when the fault is healed.

    The node then knows less than it has acknowledged: a restored backup.
    """

    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """See `Fault.inject`."""
        (node,) = self.nodes
        await target.kill(self.nodes)
        await asyncio.to_thread(_copy, _directory(target, node))
        await target.start_node(node)
        await wait_caught_up(target, node)

    async def heal(self, target: Target) -> None:
        """See `Fault.heal`."""
        (node,) = self.nodes
        if _copy_of(_directory(target, node)).exists():
            await target.kill(self.nodes)
            await target.wipe(node)
            await asyncio.to_thread(_restore, _directory(target, node))
        await target.start_node(node)


@dataclass(frozen=True, slots=True)
class Wipe:
    """A node's directory is lost with all it held; healed by starting the node, which joins anew."""

    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """See `Fault.inject`."""
        await target.kill(self.nodes)
        for node in self.nodes:
            await target.wipe(node)

    async def heal(self, target: Target) -> None:
        """See `Fault.heal`."""
        await asyncio.gather(*map(target.start_node, self.nodes))


def _directory(target: Target, node_id: str) -> Path:
    return next(node.directory for node in target.nodes if node.node_id == node_id)


def _segments(directory: Path) -> list[Path]:
    """The files of the log that hold entries, the oldest first."""
    found = sorted(path for path in directory.iterdir() if path.name.isdecimal())
    if not found:
        raise TargetError(f"{directory} holds no segment")
    return found


def _flip(directory: Path, first: int, end: int, bits: int, rng: random.Random) -> None:
    """Change bits of the log between two positions."""
    if end - first <= _HEADER_BYTES:
        raise TargetError(f"{directory} holds no entry that has been durable for long")
    segments = _segments(directory)
    for _ in range(bits):
        position = rng.randrange(first, end)
        segment = max(path for path in segments if int(path.name) <= position)
        descriptor = os.open(segment, os.O_RDWR)
        try:
            offset = position - int(segment.name)
            (byte,) = os.pread(descriptor, 1, offset)
            os.pwrite(descriptor, bytes([byte ^ 1 << rng.randrange(8)]), offset)
        finally:
            os.close(descriptor)


def _copy_of(directory: Path) -> Path:
    return directory.with_name(directory.name + COPY_SUFFIX)


def _copy(directory: Path) -> None:
    shutil.rmtree(_copy_of(directory), ignore_errors=True)
    shutil.copytree(directory, _copy_of(directory), ignore=shutil.ignore_patterns("log", "pid"))


def _restore(directory: Path) -> None:
    shutil.copytree(_copy_of(directory), directory, dirs_exist_ok=True)
    shutil.rmtree(_copy_of(directory))


def _rules(nodes: Callable[[Surroundings], tuple[str, ...]], *rules: Rule) -> Callable[[Surroundings], DiskRules]:
    return lambda s: DiskRules(nodes(s), rules)


def _slow(s: Surroundings) -> DiskRules:
    return DiskRules((s.one(),), (Rule("sync", delay_ms=s.rng.randint(1000, 5000)),))


def _torn(s: Surroundings) -> PowerLoss:
    return PowerLoss((s.one(),), s.rng.choice((0.1, 0.5, 0.9)), s.rng.getrandbits(32))


def _rot(*, running: bool) -> Callable[[Surroundings], BitRot]:
    return lambda s: BitRot((s.one(),), s.rng.choice((1, 1, 16)), running, s.rng.getrandbits(32))


def _lost(how: Literal["truncated", "deleted"]) -> Callable[[Surroundings], LostSegment]:
    return lambda s: LostSegment((s.one(),), how, s.rng.getrandbits(32))


_LOG_WRITE_FAILS: Final = Rule("write", errno.EIO, part=f"/{LOG_DIRECTORY}/")
_LOG_SYNC_FAILS: Final = Rule("sync", errno.EIO, part=f"/{LOG_DIRECTORY}/")

KINDS: Final = (
    FaultKind(
        "disk-full-one", "disk", "no space on one node's disk", _rules(lambda s: (s.one(),), *FULL_DISK), (2, 10)
    ),
    FaultKind("disk-full-all", "disk", "no space on any disk", _rules(lambda s: s.members, *FULL_DISK), (1, 5)),
    FaultKind("write-fails", "disk", "a write of the log fails (EIO)", _rules(lambda s: (s.one(),), _LOG_WRITE_FAILS)),
    FaultKind("fsync-fails", "disk", "a sync of the log fails (EIO)", _rules(lambda s: (s.one(),), _LOG_SYNC_FAILS)),
    FaultKind("fsync-slow", "disk", "syncs of one node take 1 to 5 s", _slow, (5.0, 15.0)),
    FaultKind("torn-tail", "disk", "a node loses power in the middle of its writes", _torn),
    FaultKind("bit-rot", "disk", "bits of a running node's log change", _rot(running=True), (2.0, 5.0), alone=True),
    FaultKind(
        "bit-rot-stopped", "disk", "bits of a stopped node's log change", _rot(running=False), (0.0, 2.0), alone=True
    ),
    FaultKind("segment-truncated", "disk", "half a segment is gone", _lost("truncated"), (0.0, 2.0), alone=True),
    FaultKind("segment-deleted", "disk", "a segment is gone", _lost("deleted"), (0.0, 2.0), alone=True),
    FaultKind(
        "old-copy", "disk", "a node's directory is an old copy", lambda s: OldCopy((s.one(),)), (3, 6), alone=True
    ),
    FaultKind("wipe", "disk", "a node's directory is empty", lambda s: Wipe((s.one(),)), (0.0, 2.0), alone=True),
)
