"""One node of a simulated group, and one run of its process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dledger.config import ReplicaConfig
from dledger.errors import IdentityError, LogFullError, StorageError
from dledger.loop_guard import excepted
from dledger.net.links import ChannelListener
from dledger.net.transport import Receiver
from dledger.replica.opening import set_aside
from dledger.replica.replica import Replica
from dledger.statemachine import StateMachine
from dledger.store.identity import Identity, read_identity
from dledger.testing.disk import DiskImage, SimDisk
from dledger.types import ReplicaId
from dledger_sim.log.environment import SimEnvironment
from dledger_sim.log.hearing import Hearing
from dledger_sim.log.network import SimTransport
from dledger_sim.log.platter import Platter, durable_mark
from dledger_sim.log.service import Service
from dledger_sim.log.violation import require
from dledger_sim.log.waiting import Waiting

DISK_ERRORS: Final = (StorageError, LogFullError, OSError)
"""What an injected error of a disk may come to."""


@dataclass(slots=True)
class SimNode:
    """One node directory and what runs on it."""

    name: str
    disk: SimDisk
    config: ReplicaConfig
    clock_rate: float
    clock_offset_s: float
    life: Life | None = None
    lives: int = 0
    rotten: bool = False
    """Bits of its disk were flipped, and may be found to be at any time: it may refuse to go on, or to start."""
    rotten_below: int = 0
    """A bit of its log was flipped under its eyes, below this position: see `may_lose_power`."""
    flipped: tuple[str, int, bytes] | None = None
    """A small file of which a bit was flipped last: from where on, and what those bytes have been since."""
    losing_power: bool = False
    """Every disk operation fails from now on; the crash follows at the end of the event."""
    lost_files: bool = False
    """What it had promised was deleted, and not who it is: it must come back as another member."""
    boots: int = 0
    """How often its host went down."""
    loss_accepted: bool = False
    """An operator lets its next start vote, whatever it has lost."""
    failing_disk: bool = False
    """An injected error has struck: it may end this life, or keep the next one from beginning."""
    sync_delay_s: float = 0.001
    wall_offset_ms: int = 0
    wall_gain: float = 0.0
    """Seconds that its wall clock gains each second, since `wall_gains_from`."""
    wall_gains_from: float = 0.0
    copy: DiskImage | None = None
    """An old copy of its directory that may be put back."""

    @property
    def damaged(self) -> bool:
        """It is down because of bit rot, or knows that it lacks entries because of it."""
        return self.rotten and (self.life is None or bool(self.life.replica.store.corrupt_ranges))

    @property
    def has_flipped_record(self) -> bool:
        """A bit of a small file was flipped, and nothing has been written there yet: what stands twice, or can be had
        again.
        """
        if self.flipped is None:
            return False
        path, begin, since = self.flipped
        return self.disk.image().files.get(path, b"")[begin : begin + len(since)] == since

    @property
    def may_lose_power(self) -> bool:
        """Whether a recovery would tell rot from a torn write: not rot above the durable mark, once power is lost.

        1. Entry 118 rots, acknowledged and above the mark. 2. Entries 119 to 143 are acknowledged. 3. Power is lost
        before the mark is synced. 4. The log ends with 117.
        """
        marked = durable_mark(self.disk)
        return self.rotten_below <= (0 if marked is None else marked.position)

    def has_caught_up(self, head: Replica, *, stays_learner: bool) -> bool:
        """Whether it runs, is what it is to be, and has applied and made durable all that the leader `head` has."""
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
        """Put what it held as this identity out of the way, and become another incarnation; False if its disk does not
        take that now.
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
        """By how many ms its wall clock is wrong at a moment."""
        return self.wall_offset_ms + int(self.wall_gain * (now - self.wall_gains_from) * 1000)

    @property
    def replica(self) -> Replica | None:
        """The running replica, or None."""
        return None if self.life is None else self.life.replica

    @property
    def identity(self) -> Identity | None:
        """Who its directory says it is, None if that cannot be read."""
        try:
            return read_identity(self.disk, self.name)
        except IdentityError:
            return None


class Life:
    """One run of a node's process, from start to crash."""

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
        """Called when the process ends and its machine goes on, which tells whoever is connected."""
        self.on_ended: list[Callable[[], None]] = []
        """Called when the process ends in whatever way."""
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
        """It holds as committed what an operator has accepted to lose."""

    def run(self, replica: Replica) -> None:
        """This is the replica that lives."""
        self._running = replica, Hearing(replica, self.environment), Waiting(replica)

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
        """See `dledger_sim.log.network.Endpoint`."""
        return self.transport.channels

    def deliver(self, moment: float, callback: Callable[[], None]) -> None:
        """See `dledger_sim.log.network.Endpoint`."""
        self.environment.call_at(moment, callback)
