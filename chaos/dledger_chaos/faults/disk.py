"""Faults of disks: full, failing, slow and rotten disks, and lost or outdated files."""

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
FILLED_PERMILLE: Final = (780, 860, 950, 990, 1000)
"""Used parts of a file system in permille: above the watermark, above `delete_oldest_ratio`, and all of it."""
_HEADER_BYTES: Final = 48


@dataclass(frozen=True, slots=True)
class DiskRules:
    """Calls of `nodes` fail or are late. `heal` ends that, and starts nodes that a failed call has stopped."""

    nodes: tuple[str, ...]
    rules: tuple[Rule, ...]

    async def inject(self, target: Target) -> None:
        """Inject the fault."""
        for node in self.nodes:
            target.disk(node).hold(self, self.rules)

    async def heal(self, target: Target) -> None:
        """End the fault."""
        for node in self.nodes:
            target.disk(node).release(self)
        await asyncio.gather(*map(target.start_node, self.nodes))


@dataclass(frozen=True, slots=True)
class BitRot:
    """Changed bits in the older half of the durable part of a node's log. A running node continues.

    A start of the node heals the fault, because the node then repairs its log from its peers. A running node verifies
    an old segment only once an hour, and its newest segment not at all.
    """

    nodes: tuple[str, ...]
    bits: int
    running: bool
    seed: int

    async def inject(self, target: Target) -> None:
        """Inject the fault."""
        (node,) = self.nodes
        view = await target.status(node)
        if view is None:
            raise TargetError(f"{node} does not answer: what is durable there is not known")
        if not self.running:
            await target.kill(self.nodes)
        directory = _find_directory(target, node) / LOG_DIRECTORY
        end = (view.first_position + view.durable_position) // 2
        await asyncio.to_thread(_flip_bits, directory, view.first_position, end, self.bits, random.Random(self.seed))

    async def heal(self, target: Target) -> None:
        """End the fault."""
        await target.kill(self.nodes)
        await asyncio.gather(*map(target.start_node, self.nodes))


@dataclass(frozen=True, slots=True)
class LostSegment:
    """A node is killed, and a segment of its log is cut in half or removed. A start of the node heals the fault."""

    nodes: tuple[str, ...]
    how: Literal["truncated", "deleted"]
    seed: int

    async def inject(self, target: Target) -> None:
        """Inject the fault."""
        (node,) = self.nodes
        await target.kill(self.nodes)
        segments = _list_segments(_find_directory(target, node) / LOG_DIRECTORY)
        segment = random.Random(self.seed).choice(segments)
        if self.how == "deleted":
            segment.unlink()
        else:
            os.truncate(segment, segment.stat().st_size // 2)

    async def heal(self, target: Target) -> None:
        """End the fault."""
        await asyncio.gather(*map(target.start_node, self.nodes))


@dataclass(frozen=True, slots=True)
class OldCopy:
    """A node is killed, its directory is copied, and it is started again. `heal` puts the copy back.

    The node then lacks entries that it has acknowledged, like a restored backup.
    """

    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """Inject the fault."""
        (node,) = self.nodes
        await target.kill(self.nodes)
        await asyncio.to_thread(_copy_directory, _find_directory(target, node))
        await target.start_node(node)
        await wait_caught_up(target, node)

    async def heal(self, target: Target) -> None:
        """End the fault."""
        (node,) = self.nodes
        if _get_copy_path(_find_directory(target, node)).exists():
            await target.kill(self.nodes)
            await target.wipe(node)
            await asyncio.to_thread(_restore_copy, _find_directory(target, node))
        await target.start_node(node)


@dataclass(frozen=True, slots=True)
class Wipe:
    """A node is killed, and its directory is emptied. `heal` starts the node, which joins its group anew."""

    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """Inject the fault."""
        await target.kill(self.nodes)
        for node in self.nodes:
            await target.wipe(node)

    async def heal(self, target: Target) -> None:
        """End the fault."""
        await asyncio.gather(*map(target.start_node, self.nodes))


def _find_directory(target: Target, node_id: str) -> Path:
    return next(node.directory for node in target.nodes if node.node_id == node_id)


def _list_segments(directory: Path) -> list[Path]:
    """Return the segment files of the log, the oldest first."""
    found = sorted(path for path in directory.iterdir() if path.name.isdecimal())
    if not found:
        raise TargetError(f"{directory} holds no segment")
    return found


def _flip_bits(directory: Path, first: int, end: int, bits: int, rng: random.Random) -> None:
    """Change bits of the log between two positions."""
    if end - first <= _HEADER_BYTES:
        raise TargetError(f"{directory} holds no entry that has been durable for long")
    segments = _list_segments(directory)
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


def _get_copy_path(directory: Path) -> Path:
    return directory.with_name(directory.name + COPY_SUFFIX)


def _copy_directory(directory: Path) -> None:
    shutil.rmtree(_get_copy_path(directory), ignore_errors=True)
    shutil.copytree(directory, _get_copy_path(directory), ignore=shutil.ignore_patterns("log", "pid"))


def _restore_copy(directory: Path) -> None:
    shutil.copytree(_get_copy_path(directory), directory, dirs_exist_ok=True)
    shutil.rmtree(_get_copy_path(directory))


def _make_rules_draw(
    nodes: Callable[[Surroundings], tuple[str, ...]], *rules: Rule
) -> Callable[[Surroundings], DiskRules]:
    return lambda s: DiskRules(nodes(s), rules)


def _draw_slow_syncs(s: Surroundings) -> DiskRules:
    return DiskRules((s.one(),), (Rule("sync", delay_ms=s.rng.randint(1000, 5000)),))


def _draw_failing_reads(s: Surroundings) -> DiskRules:
    """Let reads of the log, of snapshots, of a kind of views or of all files fail."""
    part = s.rng.choice((f"/{LOG_DIRECTORY}/", "/snapshots/", "/consumequeue/", "/keyindex/", ""))
    return DiskRules((s.one(),), (Rule("read", s.rng.choice((errno.EIO, errno.EBADMSG)), part=part),))


def _draw_filled_disk(s: Surroundings) -> DiskRules:
    """Let the disk of one node or of all nodes seem filled above the watermark, or completely."""
    nodes = s.members if s.rng.random() < 0.5 else (s.one(),)
    return DiskRules(nodes, (Rule("space", used_permille=s.rng.choice(FILLED_PERMILLE)),))


def _draw_torn_tail(s: Surroundings) -> PowerLoss:
    return PowerLoss((s.one(),), s.rng.choice((0.1, 0.5, 0.9)), s.rng.getrandbits(32))


def _make_rot_draw(*, running: bool) -> Callable[[Surroundings], BitRot]:
    return lambda s: BitRot((s.one(),), s.rng.choice((1, 1, 16)), running, s.rng.getrandbits(32))


def _make_loss_draw(how: Literal["truncated", "deleted"]) -> Callable[[Surroundings], LostSegment]:
    return lambda s: LostSegment((s.one(),), how, s.rng.getrandbits(32))


_LOG_WRITE_FAILS: Final = Rule("write", errno.EIO, part=f"/{LOG_DIRECTORY}/")
_LOG_SYNC_FAILS: Final = Rule("sync", errno.EIO, part=f"/{LOG_DIRECTORY}/")

KINDS: Final = (
    FaultKind(
        "disk-full-one",
        "disk",
        "no space on one node's disk",
        _make_rules_draw(lambda s: (s.one(),), *FULL_DISK),
        (2, 10),
    ),
    FaultKind(
        "disk-full-all", "disk", "no space on any disk", _make_rules_draw(lambda s: s.members, *FULL_DISK), (1, 5)
    ),
    FaultKind(
        "disk-filled", "disk", "other programs have filled 78 to 100 % of the file system", _draw_filled_disk, (4, 15)
    ),
    FaultKind(
        "read-fails",
        "disk",
        "reads of one node's files fail (EIO, EBADMSG)",
        _draw_failing_reads,
        (1.0, 4.0),
        alone=True,
    ),
    FaultKind(
        "write-fails",
        "disk",
        "a write of the log fails (EIO)",
        _make_rules_draw(lambda s: (s.one(),), _LOG_WRITE_FAILS),
    ),
    FaultKind(
        "fsync-fails", "disk", "a sync of the log fails (EIO)", _make_rules_draw(lambda s: (s.one(),), _LOG_SYNC_FAILS)
    ),
    FaultKind("fsync-slow", "disk", "syncs of one node take 1 to 5 s", _draw_slow_syncs, (5.0, 15.0)),
    FaultKind("torn-tail", "disk", "a node loses power in the middle of its writes", _draw_torn_tail),
    FaultKind(
        "bit-rot", "disk", "bits of a running node's log change", _make_rot_draw(running=True), (2.0, 5.0), alone=True
    ),
    FaultKind(
        "bit-rot-stopped",
        "disk",
        "bits of a stopped node's log change",
        _make_rot_draw(running=False),
        (0.0, 2.0),
        alone=True,
    ),
    FaultKind(
        "segment-truncated", "disk", "half a segment is gone", _make_loss_draw("truncated"), (0.0, 2.0), alone=True
    ),
    FaultKind("segment-deleted", "disk", "a segment is gone", _make_loss_draw("deleted"), (0.0, 2.0), alone=True),
    FaultKind(
        "old-copy", "disk", "a node's directory is an old copy", lambda s: OldCopy((s.one(),)), (3, 6), alone=True
    ),
    FaultKind("wipe", "disk", "a node's directory is empty", lambda s: Wipe((s.one(),)), (0.0, 2.0), alone=True),
)
