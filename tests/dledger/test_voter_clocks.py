"""The leader knows two bounds of each voter's wall clock: it has surely reached one, and cannot be past the other."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.consensus.peers import MAX_SILENCE_S, ClockReading
from dledger.core.messages import AppendReply, Heartbeat, HeartbeatReply
from dledger.core.progress import Progress
from dledger.replica.clocks import clock_ahead_ms, voter_clocks
from dledger.types import Membership, ReplicaId, WallClock
from dledger_sim.cores import CoreGroup
from dledger_sim.engine_group import replica

VOTERS = tuple(ReplicaId(f"n{number}", f"i{number}") for number in range(3))
LEARNER = ReplicaId("n3", "i3")
NOON_MS = 1_700_000_000_000
OWN = WallClock(NOON_MS, NOON_MS)


def told(wall_ms: int, asked_at: float, told_at: float) -> Progress:
    progress = Progress(0, told_at)
    progress.clock = ClockReading(wall_ms, asked_at, told_at)
    return progress


def clocks(others: Sequence[Progress], now: float, *, is_voter: bool = True) -> list[WallClock | None]:
    engine = SimpleNamespace(
        progress=dict(zip((*VOTERS[1:], LEARNER), others, strict=False)),
        membership=Membership(VOTERS if is_voter else VOTERS[1:], (LEARNER,)),
    )
    return voter_clocks(engine, VOTERS[0], now, NOON_MS)  # type: ignore[arg-type]


def test_a_clock_is_compared_as_of_the_last_answer() -> None:
    assert clock_ahead_ms(Progress(0, 100.0), 160.0, NOON_MS) is None
    progress = told(NOON_MS - 60_000, 99.5, 100.0)
    assert clock_ahead_ms(progress, 160.0, NOON_MS) == 0
    assert clock_ahead_ms(progress, 100.0, NOON_MS) == -60_000


def test_a_clock_is_bounded_by_the_times_of_its_question_and_answer() -> None:
    assert clocks([told(NOON_MS - 7, 99.75, 100.0), told(NOON_MS + 9, 99.5, 99.5)], 100.25) == [
        OWN,
        WallClock(NOON_MS - 7 + 250, NOON_MS - 7 + 500),
        WallClock(NOON_MS + 9 + 750, NOON_MS + 9 + 750),
    ]


def test_clocks_not_reported_in_this_term_or_recently_are_unknown() -> None:
    silent = told(NOON_MS, 100.0 - MAX_SILENCE_S - 0.1, 100.0)
    assert clocks([Progress(0, 100.0), silent], 100.0) == [OWN, None, None]
    assert clocks([], 100.0) == [OWN, None, None], "a former leader still counts all voters"


def test_only_clocks_of_voters_count() -> None:
    others = [told(NOON_MS + number, 100.0, 100.0) for number in (1, 2, 3)]
    known = [WallClock(NOON_MS + number, NOON_MS + number) for number in (1, 2)]
    assert clocks(others, 100.0) == [OWN, *known]
    assert clocks(others, 100.0, is_voter=False) == known


class Beaten:
    """Group in which core `a` leads and the test answers for `b`."""

    def __init__(self) -> None:
        self.group = CoreGroup("a", "b", "c")
        self.group.elect("a")
        self.group.cut(("a", "b"))
        self.group["a"].progress[replica("b")].clock = None

    @property
    def clock(self) -> ClockReading | None:
        """Return the clock of `b`, as `a` knows it."""
        return self.group["a"].progress[replica("b")].clock

    def beat(self) -> Heartbeat:
        """Make `a` send the next heartbeat, and nothing else."""
        group = self.group
        group["a"].broadcast_commit(group.now)
        (beat,) = {one.message for one in group["a"].take().effects if getattr(one, "to", None) == replica("b")}
        assert isinstance(beat, Heartbeat)
        return beat

    def answer(self, beat: Heartbeat, wall_ms: int, after_s: float = 0.0) -> None:
        """Deliver an answer of `b` to a heartbeat."""
        self.group.now += after_s
        self.group.send("b", "a", HeartbeatReply(beat.term, beat.round, 0, wall_ms=wall_ms))


@pytest.fixture
def beaten() -> Beaten:
    return Beaten()


def test_a_clock_counts_from_when_its_member_was_asked_however_late_the_answer_is_read(beaten: Beaten) -> None:
    beat, asked_at = beaten.beat(), beaten.group.now
    beaten.answer(beat, NOON_MS, after_s=10.0)
    assert beaten.clock == ClockReading(NOON_MS, asked_at, asked_at + 10.0)
    fresh = beaten.beat()
    beaten.answer(beat, NOON_MS)
    assert beaten.clock == ClockReading(NOON_MS, asked_at, asked_at + 10.0)
    beaten.answer(fresh, NOON_MS + 10_000, after_s=0.25)
    assert beaten.clock == ClockReading(NOON_MS + 10_000, asked_at + 10.0, asked_at + 10.25)


def test_a_member_that_needs_longer_than_from_beat_to_beat_is_known(beaten: Beaten) -> None:
    asked_at, beats = beaten.group.now, []
    for _ in range(4):
        beats.append(beaten.beat())
        beaten.group.now += 0.1
    beaten.answer(beats[0], NOON_MS)
    assert beaten.clock == ClockReading(NOON_MS, asked_at, beaten.group.now)


def test_replies_to_appends_report_no_clock_and_a_lost_answer_blocks_no_later_report(beaten: Beaten) -> None:
    beaten.beat()
    beaten.group.send("b", "a", AppendReply(1, 0, 0, wall_ms=NOON_MS))
    assert beaten.clock is None
    beaten.group.now += MAX_SILENCE_S + 0.01
    beaten.answer(beaten.beat(), NOON_MS)
    assert beaten.clock is not None
    assert beaten.clock.asked_at == beaten.group.now


Step = tuple[float, bool, bool]


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.booleans(), st.booleans()), max_size=60))
def test_a_right_clock_lies_within_its_bounds_despite_delayed_or_lost_replies(steps: list[Step]) -> None:
    """A right clock answers heartbeats. The answers are read later, in order or not, or never."""
    beaten, waiting = Beaten(), []
    for seconds, beats, newest in steps:
        beaten.group.now += seconds
        if beats:
            waiting.append((beaten.beat(), NOON_MS + int(beaten.group.now * 1000)))
        elif waiting:
            beaten.answer(*waiting.pop(-1 if newest else 0))
        right_ms = NOON_MS + int(beaten.group.now * 1000)
        engine = beaten.group["a"]
        known = voter_clocks(engine, engine.me, beaten.group.now, right_ms)[1]
        assert known is None or known.least_ms - 1 <= right_ms <= known.most_ms + 1
        assert known is None or known.most_ms - known.least_ms <= MAX_SILENCE_S * 1000 + 1
