"""Node of a simulated group, and a run of its process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dledger.config import ReplicaConfig
from dledger.errors import IdentityError, LogFullError, StorageError
from dledger.net.links import ChannelListener
from dledger.net.transport import Receiver
from dledger.replica.replica import Replica
from dledger.replica.start.opening import set_aside
from dledger.statemachine import StateMachine
from dledger.store.identity import Identity, read_identity
from dledger.store.snapshots import DIRECTORY as SNAPSHOTS
from dledger.testing.disk import SimDisk
from dledger.testing.inodes import DiskImage
from dledger.types import ReplicaId
from dledger_base.loop_guard import excepted
from dledger_sim.log.environment import SimEnvironment
from dledger_sim.log.hearing import Hearing
from dledger_sim.log.network import SimTransport
from dledger_sim.log.platter import Platter, durable_mark
from dledger_sim.log.service import Service
from dledger_sim.log.violation import require
from dledger_sim.log.waiting import Waiting

DISK_ERRORS: Final = (StorageError, LogFullError, OSError)
"""Errors that an injected disk error may cause."""


@dataclass(slots=True)
class SimNode:
    """Node directory, with the process that runs on it."""

    name: str
    disk: SimDisk
    config: ReplicaConfig
    clock_rate: float
    clock_offset_s: float
    life: Life | None = None
    lives: int = 0
    rotten: bool = False
    """True once bits of its disk flipped. The node may find them at any time and refuse to continue or to start."""
    rotten_below: int = 0
    """Position below which a bit of its log was flipped while the node ran (see `may_lose_power`)."""
    flipped: tuple[str, int, bytes] | None = None
    """Small file with the newest flipped bit: path, first byte, and the bytes since the flip.

    The bytes are empty if a sector has gone bad there instead.
    """
    losing_power: bool = False
    """True while every disk operation fails because of a power cut. The crash follows at the end of the event."""
    lost_files: bool = False
    """True if its promises were deleted but not its identity: it must come back as another member."""
    boots: int = 0
    """Number of times that its host went down."""
    loss_accepted: bool = False
    """True if an operator lets its next start vote, even if it has lost entries."""
    failing_disk: bool = False
    has_lost_sync: bool = False
    """True if a sync of the log has failed since the last start."""
    """True once an injected disk error has struck. The error may end this life, or prevent the next start."""
    sync_delay_s: float = 0.001
    hung_lanes: tuple[str, ...] = ()
    """Lanes whose works the disk leaves unanswered now."""
    hung_call: tuple[str, str] | None = None
    """Operation that the disk leaves unanswered now, and the beginning of the paths for which it does."""
    wall_offset_ms: int = 0
    wall_gain: float = 0.0
    """Seconds that its wall clock gains each second, since `wall_gains_from`."""
    wall_gains_from: float = 0.0
    copy: DiskImage | None = None
    """Old copy of its directory that may be put back."""

    @property
    def damaged(self) -> bool:
        """True if it is down because of bit rot, or knows that rot has taken entries from it."""
        return self.rotten and (self.life is None or bool(self.life.replica.store.corrupt_ranges))

    @property
    def flipped_snapshot(self) -> int:
        """Position of the snapshot with the newest flipped bit. It is 0 if the flip struck another file."""
        directory, _, name = self.flipped[0].rpartition("/") if self.flipped else ("", "", "")
        return int(name) if directory == SNAPSHOTS and name.isdigit() else 0

    @property
    def has_flipped_record(self) -> bool:
        """True if a bit of a small file was flipped and nothing has been written there since.

        Such a file has a second copy or can be made again.
        """
        if self.flipped is None:
            return False
        path, begin, since = self.flipped
        if not since:
            return self.disk.is_spoiled(path, begin)
        return self.disk.image().files.get(path, b"")[begin : begin + len(since)] == since

    @property
    def may_lose_power(self) -> bool:
        """True if a recovery would tell rot from a torn write.

        It cannot do so for rot above the durable mark after a power loss.

        1. Entry 118 rots; it is acknowledged and above the mark.
        2. Entries 119 to 143 are acknowledged.
        3. Power is lost before the mark is synced.
        4. The log ends with 117.
        """
        marked = durable_mark(self.disk)
        return self.rotten_below <= (0 if marked is None else marked.position)

    def has_caught_up(self, head: Replica, *, stays_learner: bool) -> bool:
        """Return whether the node has its role and has applied and synced everything that the leader `head` has."""
        replica, life = self.replica, self.life
        if replica is None or life is None or life.stopping or life.environment.paused:
            return False
        membership = head.engine.membership
        return (
            replica.me in (membership.learners if stays_learner else membership.voters)
            and replica.engine.term == head.engine.term
            and replica.engine.commit_index == head.store.last_index
            and replica.applied_index == head.store.last_index
            and replica.store.durable == head.store.last_index
        )

    def set_aside(self, identity: Callable[[], Identity], mint: Callable[[], str]) -> bool:
        """Set the files of this identity aside, and become a new incarnation.

        Return False if the disk refuses that now.
        """
        try:
            with excepted("its process has ended"):
                set_aside(self.disk, identity(), mint)
        except DISK_ERRORS as error:
            excused = self.disk.is_full or self.failing_disk or self.losing_power
            require(excused, "a log is set aside", node=self.name, error=error)
            return False
        return True

    def wall_wrong_by(self, now: float) -> int:
        """Return the error of its wall clock at a moment, in milliseconds."""
        return self.wall_offset_ms + int(self.wall_gain * (now - self.wall_gains_from) * 1000)

    @property
    def replica(self) -> Replica | None:
        """Running replica, or None."""
        return None if self.life is None else self.life.replica

    @property
    def identity(self) -> Identity | None:
        """Identity in its directory, or None if that cannot be read."""
        try:
            return read_identity(self.disk, self.name)
        except IdentityError:
            return None


class Life:
    """Run of a node's process, from start to crash."""

    def __init__(
        self, node: SimNode, environment: SimEnvironment, transport: SimTransport, me: ReplicaId, platter: Platter
    ) -> None:
        self.node = node
        self.platter = platter
        self.environment = environment
        self.transport = transport
        self.replica_id = me
        self.serving: Service | None = None
        self._running: tuple[Replica, Hearing, Waiting] | None = None
        self.stopping = False
        self.on_killed: list[Callable[[], None]] = []
        """Callbacks for an end of the process alone.

        The machine stays up and closes the connections, so that peers notice.
        """
        self.on_ended: list[Callable[[], None]] = []
        """Callbacks for every end of the process."""
        self.commit_seen = -1
        self.applied_seen = -1
        self.first_seen = 0
        self.last_seen = -1
        self.led_term = 0
        self.match_checked = (-1, -1)
        self.membership_seen = -2
        self.membership_known = -2
        self.membership_from = -1
        self.term_durable = 0
        self.astray = False
        """True if the replica holds entries as committed whose loss an operator has accepted."""

    def run(self, replica: Replica) -> None:
        """Set the replica of this life."""
        self._running = replica, Hearing(replica, self.environment), Waiting(replica, lambda: self.environment.clock)

    @property
    def replica(self) -> Replica:
        assert self._running is not None
        return self._running[0]

    @property
    def hearing(self) -> Hearing:
        assert self._running is not None
        return self._running[1]

    @property
    def waiting(self) -> Waiting:
        assert self._running is not None
        return self._running[2]

    @property
    def service(self) -> Service:
        assert self.serving is not None
        return self.serving

    @property
    def machine(self) -> StateMachine:
        return self.service.machine

    @property
    def receiver(self) -> Receiver:
        return self.hearing

    @property
    def channels(self) -> Mapping[int, ChannelListener]:
        """Listeners of the node's channels, by number."""
        return self.transport.channels

    def deliver(self, moment: float, callback: Callable[[], None]) -> None:
        """Call on the node's event loop at a moment, if this life has not ended by then."""
        self.environment.call_at(moment, callback)
