"""Wall clocks of a group's members, as its leader knows them.

A member stamps its clock on every answer. What the leader reckons from that errs late only: a member's clock stood at
the stamp when the answer was made, and has run on at least since the answer came. Two things could make it err early,
and both are bounded by `MAX_SILENCE_S`: a clock that is slower than the leader's monotonic one, and one that was set
back after the answer (it has been there before, though).
"""

from __future__ import annotations

from typing import Final

from dledger.core.progress import Progress
from dledger.engines import Engine
from dledger.types import ReplicaId

MAX_SILENCE_S: Final = 1.0
"""The clock of a member that has not answered for longer is not known."""


def clock_ahead_ms(peer: Progress, now: float, wall_ms: int) -> int | None:
    """How far a member's wall clock is ahead of the leader's, None if it has not told in this term.

    `now` and `wall_ms` are the leader's monotonic seconds and wall clock.  A member's clock is known as of its last
    answer.
    """
    if not peer.wall_ms:
        return None
    return peer.wall_ms + int((now - peer.contact_at) * 1000) - wall_ms


def voter_clocks(engine: Engine, me: ReplicaId, now: float, wall_ms: int) -> list[int | None]:
    """See `dledger.log.Log.voter_clocks`; `now` and `wall_ms` as in `clock_ahead_ms`.

    A node that leads no more knows nobody's clock but its own, and has the clocks of as many voters as before.
    """
    clocks: list[int | None] = []
    for voter in engine.table.membership.voters:
        progress = engine.progress.get(voter)
        if voter == me:
            clocks.append(wall_ms)
        elif progress is None or not progress.wall_ms or now - progress.contact_at > MAX_SILENCE_S:
            clocks.append(None)
        else:
            clocks.append(progress.wall_ms + int((now - progress.contact_at) * 1000))
    return clocks
