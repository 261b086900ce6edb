"""What a leader knows of its voters' wall clocks: never more than they have reached."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from dledger.core.progress import Progress
from dledger.replica.clocks import MAX_SILENCE_S, clock_ahead_ms, voter_clocks
from dledger.types import Membership, ReplicaId

VOTERS = tuple(ReplicaId(f"n{number}", f"i{number}") for number in range(3))
LEARNER = ReplicaId("n3", "i3")
NOON_MS = 1_700_000_000_000


def told(wall_ms: int, answered_at: float) -> Progress:
    progress = Progress(0, answered_at)
    progress.wall_ms = wall_ms
    return progress


def clocks(others: Sequence[Progress], now: float, *, is_voter: bool = True) -> list[int | None]:
    engine = SimpleNamespace(
        progress=dict(zip((*VOTERS[1:], LEARNER), others, strict=False)),
        table=SimpleNamespace(membership=Membership(VOTERS if is_voter else VOTERS[1:], (LEARNER,))),
    )
    return voter_clocks(engine, VOTERS[0], now, NOON_MS)  # type: ignore[arg-type]


def test_a_clock_is_compared_as_of_the_last_answer() -> None:
    progress = Progress(0, 100.0)
    assert clock_ahead_ms(progress, 160.0, NOON_MS) is None
    progress.wall_ms = NOON_MS - 60_000
    assert clock_ahead_ms(progress, 160.0, NOON_MS) == 0
    assert clock_ahead_ms(progress, 100.0, NOON_MS) == -60_000


def test_a_clock_runs_on_from_the_answer_that_told_it() -> None:
    assert clocks([told(NOON_MS - 7, 100.0), told(NOON_MS + 9, 99.5)], 100.25) == [
        NOON_MS,
        NOON_MS - 7 + 250,
        NOON_MS + 9 + 750,
    ]


def test_who_has_not_told_in_this_term_or_is_silent_is_not_known() -> None:
    silent = told(NOON_MS, 100.0 - MAX_SILENCE_S - 0.1)
    assert clocks([Progress(0, 100.0), silent], 100.0) == [NOON_MS, None, None]


def test_who_leads_no_more_knows_of_as_many_voters_as_before() -> None:
    assert clocks([], 100.0) == [NOON_MS, None, None]


def test_only_voters_have_a_say() -> None:
    others = [told(NOON_MS + 1, 100.0), told(NOON_MS + 2, 100.0), told(NOON_MS + 3, 100.0)]
    assert clocks(others, 100.0) == [NOON_MS, NOON_MS + 1, NOON_MS + 2]
    assert clocks(others, 100.0, is_voter=False) == [NOON_MS + 1, NOON_MS + 2]
