"""Faults of disks.  One that makes a node forget what it promised is only injected while everybody else remembers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

from dledger.replica.opening import LOG_DIRECTORIES
from dledger.store.segments import DIRECTORY as LOG_DIRECTORY
from dledger_sim.log.group import SimGroup, SimNode


@dataclass(frozen=True, slots=True)
class SlowDisk:
    """Syncs take up to seconds."""

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
class Usurped:
    """A node with a slow disk is cut off for `cut_off_s`: if it leads, what it is syncing is void when it is back.

    So the sync that is under way ends behind the truncation, and others begin with what came instead.
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
    """No space is left but a little, and others take what is given back.

    For `cut_off_s` of that time these nodes hear nobody: a leader then fills its log with what others replace later.
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
    """The next write or sync of a kind of file fails; the node dies of it and starts again.

    Of a `torn` write the first half is in the page cache.
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
                group.witness.happened["disk error met"] += 1
            return fails

        node.disk.fail(matches, torn=self.torn)
        return True

    def heal(self, group: SimGroup) -> None:
        group.nodes[self.node].disk.faults.clear()
        group.start(self.node)


def _may_rot(group: SimGroup, node: SimNode) -> bool:
    """Everybody else remembers everything, and nothing else is rotten."""
    others_rot = any(other.rotten for other in group.nodes.values() if other is not node)
    whole = group.healthy() and group.can_spare(node.name)
    return node.life is not None and whole and not others_rot and not group.damaged


@dataclass(frozen=True, slots=True)
class BitFlip:
    """A bit of a node's files rots, of a stopped one or, with `running`, under its eyes."""

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
        files = [path for path in node.disk.paths() if path.startswith(self.prefix)]
        sizes = [node.disk.durable_size(path) for path in files]
        byte = int(self.where * sum(sizes))
        for path, size in zip(files, sizes, strict=True):
            if byte < size:
                node.disk.flip_bit(path, byte * 8 + int(self.where * 1e6) % 8)
                node.rotten = True
                group.witness.amnesia(self.node)
                break
            byte -= size
        return True

    def heal(self, group: SimGroup) -> None:
        group.start(self.node)


AROUND = 64
"""Bytes on both sides of a bit that rotted: what was written anew there differs, at least in its number or checksum."""


@dataclass(frozen=True, slots=True)
class FlipRecord:
    """A bit of one of a node's small files rots, of a stopped one or, with `running`, under its eyes; then it is
    started anew, or with `found` has to see it while it runs.

    Each stands twice, or can be made or fetched again: nobody has to help the node, and nothing it serves is wrong.
    """

    node: str
    where: float
    path: str
    """Of the file, or of the directory of files."""
    duration_s: float
    running: bool = False
    found: bool = False

    def inject(self, group: SimGroup) -> bool:
        node = group.nodes[self.node]
        if not _may_rot(group, node) or any(one.has_flipped_record for one in group.nodes.values()):
            return False
        contents = {path: raw for path, raw in node.disk.image().files.items() if path.startswith(self.path)}
        said = [(path, byte) for path, raw in contents.items() for byte, value in enumerate(raw) if value]
        if not said or node.disk.faults:
            return False
        if not self.running:
            group.kill(self.node)
        path, byte = said[int(self.where * len(said))]
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
    """A segment of a stopped node's log is deleted, or with `cut` loses its second half."""

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
    """A copy of a stopped node's directory is put back after a while, over what it has become.

    None is made of a group's only voter: with others by then, it would go back to a time when it needed none of them.
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
    """A node loses its directory: it comes back as another incarnation."""

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
    """A node's log, votes and snapshots are deleted; who it is is left.  It must not pass for the member it was."""

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
