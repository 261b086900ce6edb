"""Wall clocks of a group's members, as its leader knows them.

A member stamps its clock on the answer to each heartbeat. The stamp was made between the sending of the heartbeat and
the reading of the answer, both by the leader's monotonic clock. So the member's clock shows at least the stamp plus the
time since the reading. It shows at most the stamp plus the time since the sending. The lower bound decides what is due;
the upper bound is for computing when something becomes due.

Answers to heartbeats sent more than `MAX_SILENCE_S` ago are ignored. That also limits the error of both bounds, if the
member's clock runs at another speed than the leader's or is set after the answer.
"""

from __future__ import annotations

from dledger.consensus.engine import Engine
from dledger.consensus.peers import MAX_SILENCE_S, Peer
from dledger.types import ReplicaId, WallClock


def clock_ahead_ms(peer: Peer, now: float, wall_ms: int) -> int | None:
    """Return by how much a member's wall clock is ahead of the leader's; None without a reading in this term.

    `now` and `wall_ms` are the leader's monotonic seconds and wall clock. The result rests on the member's last answer
    to a heartbeat, however old that is.
    """
    clock = peer.clock
    return None if clock is None else clock.wall_ms + int((now - clock.told_at) * 1000) - wall_ms


def voter_clocks(engine: Engine, me: ReplicaId, now: float, wall_ms: int) -> list[WallClock | None]:
    """Return the bounds of each voter's wall clock, None for a voter whose clock is not known.

    See `dledger.log.Log.voter_clocks`; `now` and `wall_ms` are as in `clock_ahead_ms`. A node that no longer leads
    knows only its own clock, and still returns an item for each voter.
    """
    voters = engine.membership.voters
    return [
        WallClock(wall_ms, wall_ms) if voter == me else _clock_of(engine.progress.get(voter), now) for voter in voters
    ]


def _clock_of(peer: Peer | None, now: float) -> WallClock | None:
    clock = None if peer is None else peer.clock
    if clock is None or now - clock.asked_at > MAX_SILENCE_S:
        return None
    least_ms, most_ms = (clock.wall_ms + int((now - moment) * 1000) for moment in (clock.told_at, clock.asked_at))
    return WallClock(least_ms, most_ms)
