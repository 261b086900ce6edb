"""Status of a replica, which is the JSON of `/status`, and the measure of how late its event loop's timers fire.

A long turn of the loop, or a process that gets no core, delays every timer that is due meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from typing import Final

import msgspec

from dledger.environment import Environment
from dledger_base.loop_holds import Held

_NAMES: Final = {"disk_used": "disk_used_permille"}
"""Names in the JSON. Its reader can only learn the unit from the name."""
BOUNDS_S: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0)
"""Upper bounds in seconds by which late timers are counted.

A turn should take a few ms; from 0.5 s on elections may fail.
"""


class PeerStatus(msgspec.Struct, frozen=True, rename=_NAMES):
    """One other member as the leader sees it.

    `lag` is in entries. `contact_ms` is the time since the member last answered. `clock_ahead_ms` compares its wall
    clock with the leader's, and is None until the member has reported its clock. `disk_used` is the fullness of its
    disk in 1/1000 (1000: no space for more).
    """

    node_id: str
    voter: bool
    match_index: int
    lag: int
    contact_ms: int
    mode: str
    disk_used: int
    clock_ahead_ms: int | None
    first_position: int = -1
    """Position of the beginning of its log; -1 until the member has reported it."""


class LoopLateness(msgspec.Struct, frozen=True):
    """Lateness of the event loop's timers since the start.

    `at_most` has, for each bound of `dledger.replica.status.BOUNDS_S`, the number of timers that were late by at most
    that. Its last item is the number of all timers. `seconds` is the sum of their lateness.
    """

    at_most: list[int]
    seconds: float


class NodeStatus(msgspec.Struct, frozen=True, rename=_NAMES):
    """Status of a node.

    Positions are bytes of the log; indexes count entries from 0. `disk_used` is as in `PeerStatus`.
    """

    node_id: str
    incarnation: str
    cluster: str
    group: str
    role: str
    term: int
    leader_id: str | None
    ready: bool
    voter: bool
    first_index: int
    last_index: int
    commit_index: int
    applied_index: int
    first_position: int
    last_position: int
    durable_position: int
    applied_position: int
    disk_used: int
    syncs: int
    sync_seconds: float
    elections: int
    voters: list[str]
    learners: list[str]
    peers: list[PeerStatus]
    failure: str | None = None
    corrupt_bytes: int = 0
    """Number of bytes not served, because they do not verify and no peer's bytes have replaced them yet."""
    repairs: int = 0
    """Number of corrupt ranges healed since the start."""
    rotten_snapshots: int = 0
    """Number of snapshots neither trimmed to nor sent: they do not verify and no peer's copy has replaced them yet."""
    snapshots: int = 0
    """Number of snapshots that this node keeps."""
    snapshot_position: int = -1
    """Position of the newest snapshot, to which the log may be trimmed; -1 without one."""
    verified_position: int = -1
    """Position up to which the scrub has verified the log in its present or last round; -1 before the first."""
    scrub_rounds: int = 0
    """Number of rounds in which the scrub has verified all closed segments since the start."""
    loop_late: LoopLateness | None = None
    loop_held: list[Held] = []
    """Work that held the event loop since the start; see `dledger_base.loop_holds`."""
    disk_warning: str | None = None
    """Warning that the file system of this node's log is above the watermark, with what to do."""
    group_identity: str | None = None
    """Identity of the group (`dledger_base.group_identity`); None until this node knows it."""
    refusal: str | None = None
    """Reason why this leader takes no writes, or why a follower's own disk is full, with what to do."""


class TimedLoop:
    """Sets timers and counts how late they fire."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._late_s = 0.0

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Set a timer as `Environment.call_later` does, and count its lateness."""
        due = self._environment.now() + delay_s

        def fire() -> None:
            self._count(self._environment.now() - due)
            callback()

        self._environment.call_later(delay_s, fire)

    def lateness(self) -> LoopLateness:
        """Return the counts since the start."""
        return LoopLateness(list(accumulate(self._counts)), self._late_s)

    def _count(self, late_s: float) -> None:
        late_s = max(late_s, 0.0)
        self._counts[bisect_left(BOUNDS_S, late_s)] += 1
        self._late_s += late_s
