"""Faults of disks. A fault that makes a node forget promises is injected only while all others remember theirs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

from dledger.replica.start.opening import LOG_DIRECTORIES
from dledger.store.segments import DIRECTORY as LOG_DIRECTORY
from dledger.testing.inodes import PAGE_BYTES
from dledger_sim.log.group import SimGroup, SimNode


@dataclass(frozen=True, slots=True)
class SlowDisk:
    """Slow disk: syncs take up to seconds."""

    node: str
    sync_s: float
    normal_s: float
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        group.nodes[self.node].sync_delay_s = self.sync_s
        return True

    def heal(self, group: SimGroup) -> None:
        group.nodes[self.node].sync_delay_s = self.normal_s


@dataclass(frozen=True, slots=True)
class HangingDisk:
    """Hung disk: calls by works of some lanes get no answer, so the works stop where they are."""

    node: str
    lanes: tuple[str, ...]
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        node = group.nodes[self.node]
        if node.life is None or node.hung_lanes:
            return False
        node.hung_lanes = self.lanes
        return True

    def heal(self, group: SimGroup) -> None:
        group.nodes[self.node].hung_lanes = ()


@dataclass(frozen=True, slots=True)
class HangingCall:
    """Hung call: one kind of call gets no answer, for files whose paths have a prefix. Works stop in the middle there.

    It strikes only nodes whose works are interrupted at their disk calls.
    """

    node: str
    operation: str
    prefix: str
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        node = group.nodes[self.node]
        if node.life is None or group.threads is None or node.hung_call is not None:
            return False
        node.hung_call = self.operation, self.prefix
        return True

    def heal(self, group: SimGroup) -> None:
        group.nodes[self.node].hung_call = None


@dataclass(frozen=True, slots=True)
class Usurped:
    """Leader with a slow disk that is cut off for `cut_off_s`. The entries that it is syncing are void when it is back.

    So the sync under way ends after the truncation, and later syncs cover the replacements.
    """

    node: str
    sync_s: float
    normal_s: float
    cut_off_s: float
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        leader = group.leader
        if leader is None or leader.name != self.node:
            return False
        leader.sync_delay_s = self.sync_s
        links = [link for link in permutations(group.settings.names, 2) if self.node in link]
        for link in links:
            group.network.block(*link)

        def rejoin() -> None:
            for link in links:
                group.network.unblock(*link)

        group.scheduler.after(self.cut_off_s, rejoin)
        return True

    def heal(self, group: SimGroup) -> None:
        group.nodes[self.node].sync_delay_s = self.normal_s


@dataclass(frozen=True, slots=True)
class FullDisk:
    """Full disk: little space is left, and other programs take freed space at once.

    For `cut_off_s` of that time these nodes receive no messages. A leader then fills its log with entries that others
    replace later.
    """

    nodes: tuple[str, ...]
    spare_bytes: int
    duration_s: float
    cut_off_s: float = 0.0

    def inject(self, group: SimGroup) -> bool:
        for name in self.nodes:
            group.nodes[name].disk.fill_up(self.spare_bytes)
        group.disks_filled = True
        if self.cut_off_s:
            sent = [(a, b) for a, b in permutations(group.settings.names, 2) if a in self.nodes]
            links = [*sent, *((b, a) for a, b in sent)]
            for link in links:
                group.network.block(*link)

            def rejoin() -> None:
                for link in links:
                    group.network.unblock(*link)

            group.scheduler.after(self.cut_off_s, rejoin)
        return True

    def heal(self, group: SimGroup) -> None:
        for name in self.nodes:
            group.nodes[name].disk.make_room()


@dataclass(frozen=True, slots=True)
class DiskError:
    """Disk error: the next write or sync of a kind of file fails. The node dies of it and restarts.

    The first half of a `torn` write is in the page cache.
    """

    node: str
    operation: str
    prefix: str
    duration_s: float
    torn: bool = False

    def inject(self, group: SimGroup) -> bool:
        node = group.nodes[self.node]
        if node.life is None or node.disk.faults:
            return False

        def matches(operation: str, path: str) -> bool:
            fails = operation == self.operation and path.startswith(self.prefix)
            if fails:
                node.failing_disk = True
                node.has_lost_sync |= operation == "datasync" and path.startswith("commitlog")
                group.witness.happened["disk error met"] += 1
            return fails

        node.disk.fail(matches, torn=self.torn)
        return True

    def heal(self, group: SimGroup) -> None:
        group.nodes[self.node].disk.faults.clear()
        group.start(self.node)


def _may_rot(group: SimGroup, node: SimNode) -> bool:
    """Return whether all others remember everything, and no other node has rotten files."""
    others_rot = any(other.rotten for other in group.nodes.values() if other is not node)
    whole = group.healthy() and group.can_spare(node.name)
    return node.life is not None and whole and not others_rot and not group.damaged


@dataclass(frozen=True, slots=True)
class BitFlip:
    """Flipped bit in a file of a stopped node, or with `running` of a running node."""

    node: str
    where: float
    prefix: str
    duration_s: float
    running: bool = False

    def inject(self, group: SimGroup) -> bool:
        node = group.nodes[self.node]
        if not _may_rot(group, node) or (self.running and node.disk.faults):
            return False
        if self.running and node.life is not None:
            node.rotten_below = node.life.replica.store.end_position
        else:
            group.kill(self.node)
        found = _byte_of(node, self.prefix, self.where)
        if found is not None:
            path, byte = found
            node.disk.flip_bit(path, byte * 8 + int(self.where * 1e6) % 8)
            node.rotten = True
            group.witness.amnesia(self.node)
        return True

    def heal(self, group: SimGroup) -> None:
        group.start(self.node)


def _byte_of(node: SimNode, prefix: str, where: float) -> tuple[str, int] | None:
    """Return a byte of a node's files of a kind, or None if these are empty."""
    files = [path for path in node.disk.paths() if path.startswith(prefix)]
    sizes = [node.disk.durable_size(path) for path in files]
    byte = int(where * sum(sizes))
    for path, size in zip(files, sizes, strict=True):
        if byte < size:
            return path, byte
        byte -= size
    return None


@dataclass(frozen=True, slots=True)
class BadSector:
    """Unreadable page in the log or the indexes of a stopped node, or with `running` of a running node.

    It is judged as rot is. On a running node the segment in which the log ends is spared: the system has that segment
    in memory.
    """

    node: str
    where: float
    prefix: str
    duration_s: float
    running: bool = False

    def inject(self, group: SimGroup) -> bool:
        node = group.nodes[self.node]
        if not _may_rot(group, node) or node.disk.faults or node.life is None:
            return False
        end = node.life.replica.store.end_position
        size = group.settings.segment_bytes
        if not self.running:
            group.kill(self.node)
        found = _byte_of(node, self.prefix, self.where)
        if found is None:
            return not self.running
        path, byte = found
        if self.running:
            position = (int(path.rpartition("/")[2]) + byte) // PAGE_BYTES * PAGE_BYTES
            if path.startswith(LOG_DIRECTORY) and position + PAGE_BYTES > end - end % size:
                return False
            node.rotten_below = end
        node.disk.spoil(path, byte)
        node.rotten = True
        group.witness.amnesia(self.node)
        group.witness.happened[f"unreadable {self.prefix}"] += 1
        return True

    def heal(self, group: SimGroup) -> None:
        group.start(self.node)


AROUND = 64
"""Number of bytes on both sides of a flipped bit that are remembered.

A rewrite changes them: at least number or checksum differ.
"""


@dataclass(frozen=True, slots=True)
class FlipRecord:
    """Flipped bit in a small file of a stopped node, or with `running` of a running node.

    The node is restarted afterwards; with `found` it must see the flip while it runs. Each small file has a second
    copy, or can be made or fetched again. So the node needs no help, and serves nothing wrong.
    """

    node: str
    where: float
    path: str
    """Path of the file, or of a directory of files."""
    duration_s: float
    running: bool = False
    found: bool = False
    unreadable: bool = False
    """True if a sector has gone bad instead of a bit: its page cannot be read."""

    def inject(self, group: SimGroup) -> bool:
        node = group.nodes[self.node]
        if not _may_rot(group, node) or any(one.has_flipped_record for one in group.nodes.values()):
            return False
        contents = {path: raw for path, raw in node.disk.image().files.items() if path.startswith(self.path)}
        nonzero_bytes = [(path, byte) for path, raw in contents.items() for byte, value in enumerate(raw) if value]
        if not nonzero_bytes or node.disk.faults:
            return False
        if not self.running:
            group.kill(self.node)
        path, byte = nonzero_bytes[int(self.where * len(nonzero_bytes))]
        if self.unreadable:
            node.disk.spoil(path, byte)
            node.flipped = (path, byte, b"")
            group.say(f"a sector of {path} has gone bad")
            group.witness.happened[f"unreadable {self.path}"] += 1
            return True
        bit = int(self.where * 1e9) % 8
        node.disk.flip_bit(path, byte * 8 + bit)
        begin = max(0, byte - AROUND)
        node.flipped = (path, begin, node.disk.image().files[path][begin : byte + AROUND])
        group.say(f"a bit of {path} has rotted")
        group.witness.happened[f"flipped {self.path}"] += 1
        return True

    def heal(self, group: SimGroup) -> None:
        if group.nodes[self.node].has_flipped_record and not self.found:
            group.kill(self.node)
        group.start(self.node)


@dataclass(frozen=True, slots=True)
class LoseSegment:
    """Lost segment in a stopped node's log. With `cut` the segment only loses its second half."""

    node: str
    where: float
    cut: bool
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        node = group.nodes[self.node]
        if not _may_rot(group, node) or node.disk.faults:
            return False
        group.kill(self.node)
        segments = [path for path in node.disk.paths() if path.startswith(LOG_DIRECTORY)]
        path = segments[int(self.where * len(segments))]
        node.rotten = True
        group.witness.amnesia(self.node)
        if self.cut:
            file = node.disk.open(path)
            file.truncate(file.size() // 2)
            file.close()
        else:
            node.disk.unlink(path)
            node.disk.sync_dir(LOG_DIRECTORY)
        return True

    def heal(self, group: SimGroup) -> None:
        group.start(self.node)


@dataclass(frozen=True, slots=True)
class OldCopy:
    """Old copy of a stopped node's directory, which replaces the newer directory after a while.

    No copy is made of a group's only voter. The group may have other voters by the time the copy is put back. In the
    copy it would still need none of them.
    """

    node: str
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        node = group.nodes[self.node]
        if node.life is None or node.copy is not None or node.disk.faults or node.rotten:
            return False
        engine = node.life.replica.engine
        _, committed = engine.membership_at(engine.commit_index)
        if len(committed.voters) < 2:
            return False
        group.kill(self.node)
        node.copy = node.disk.image()
        group.start(self.node)
        return True

    def heal(self, group: SimGroup) -> None:
        node = group.nodes[self.node]
        copy, node.copy = node.copy, None
        if copy is None or not _may_rot(group, node):
            return
        group.kill(self.node)
        group.witness.amnesia(self.node)
        group.witness.happened["old copy restored"] += 1
        node.disk.restore(copy)
        group.start(self.node)


@dataclass(frozen=True, slots=True)
class Wipe:
    """Lost directory: the node comes back as another incarnation."""

    node: str
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        if not group.healthy() or group.damaged or not group.can_spare(self.node):
            return False
        group.wipe(self.node)
        return True

    def heal(self, group: SimGroup) -> None:
        group.start(self.node)


@dataclass(frozen=True, slots=True)
class LoseFiles:
    """Lost files: log, votes and snapshots are deleted, the identity is left.

    The node must not pass for the same member.
    """

    node: str
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        disk = group.nodes[self.node].disk
        if not group.healthy() or group.damaged or disk.faults or not group.can_spare(self.node):
            return False
        group.kill(self.node)
        group.witness.amnesia(self.node)
        group.nodes[self.node].lost_files = True
        for directory in LOG_DIRECTORIES:
            disk.rmtree(directory)
        disk.sync_dir(".")
        return True

    def heal(self, group: SimGroup) -> None:
        group.start(self.node)
