"""Wall clocks of a group's members, as its leader knows them.

A member stamps its clock on the answer to each beat. Some moment between the sending of the beat and the reading of the
answer, both by the leader's monotonic clock, was that of the stamp: the member's clock stands at least where the stamp
is carried on to from the reading, at most where it is carried on to from the sending. Whoever asks what is due needs
the one, whoever reckons when something is to be due the other.

What was asked more than `MAX_SILENCE_S` ago tells nothing. That also bounds how wrong both can be made by a clock
that runs at another speed than the leader's monotonic one, or is set after the answer.
"""

from __future__ import annotations

from dledger.consensus.engine import Engine
from dledger.consensus.peers import MAX_SILENCE_S, Peer
from dledger.types import ReplicaId, WallClock


def clock_ahead_ms(peer: Peer, now: float, wall_ms: int) -> int | None:
    """How far a member's wall clock is ahead of the leader's, None if it has not told in this term.

    `now` and `wall_ms` are the leader's monotonic seconds and wall clock.  A member's clock is known as of its last
    answer to a beat, however old that is.
    """
    clock = peer.clock
    return None if clock is None else clock.wall_ms + int((now - clock.told_at) * 1000) - wall_ms


def voter_clocks(engine: Engine, me: ReplicaId, now: float, wall_ms: int) -> list[WallClock | None]:
    """See `dledger.log.Log.voter_clocks`; `now` and `wall_ms` as in `clock_ahead_ms`.

    A node that leads no more knows nobody's clock but its own, and has the clocks of as many voters as before.
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
