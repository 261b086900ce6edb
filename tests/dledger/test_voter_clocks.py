"""What a leader knows of its voters' wall clocks: between what they have reached for sure, and what they can have."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from dledger.consensus.peers import MAX_SILENCE_S, ClockReading
from dledger.core.messages import AppendReply, Heartbeat, HeartbeatReply
from dledger.core.progress import Progress
from dledger.replica.clocks import clock_ahead_ms, voter_clocks
from dledger.testing.cores import CoreGroup
from dledger.testing.engine_group import replica
from dledger.types import Membership, ReplicaId, WallClock

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


def test_a_clock_runs_on_at_least_from_its_answer_and_at_most_from_its_question() -> None:
    assert clocks([told(NOON_MS - 7, 99.75, 100.0), told(NOON_MS + 9, 99.5, 99.5)], 100.25) == [
        OWN,
        WallClock(NOON_MS - 7 + 250, NOON_MS - 7 + 500),
        WallClock(NOON_MS + 9 + 750, NOON_MS + 9 + 750),
    ]


def test_who_has_not_told_in_this_term_or_was_asked_long_ago_is_not_known() -> None:
    silent = told(NOON_MS, 100.0 - MAX_SILENCE_S - 0.1, 100.0)
    assert clocks([Progress(0, 100.0), silent], 100.0) == [OWN, None, None]


def test_who_leads_no_more_knows_of_as_many_voters_as_before() -> None:
    assert clocks([], 100.0) == [OWN, None, None]


def test_only_voters_have_a_say() -> None:
    others = [told(NOON_MS + number, 100.0, 100.0) for number in (1, 2, 3)]
    known = [WallClock(NOON_MS + number, NOON_MS + number) for number in (1, 2)]
    assert clocks(others, 100.0) == [OWN, *known]
    assert clocks(others, 100.0, is_voter=False) == known


# ---------------------------------------------------------------- which answers tell a clock


class Beaten:
    """Core `a` leads, and the test answers for `b`."""

    def __init__(self) -> None:
        self.group = CoreGroup("a", "b", "c")
        self.group.elect("a")
        self.group.cut(("a", "b"))
        self.group["a"].progress[replica("b")].clock = None

    @property
    def clock(self) -> ClockReading | None:
        """Of `b`, as `a` knows it."""
        return self.group["a"].progress[replica("b")].clock

    def beat(self) -> Heartbeat:
        """Have `a` send the next beat, and nothing else."""
        group = self.group
        group["a"].broadcast_commit(group.now)
        (beat,) = {one.message for one in group["a"].take().effects if getattr(one, "to", None) == replica("b")}
        assert isinstance(beat, Heartbeat)
        return beat

    def answer(self, beat: Heartbeat, wall_ms: int, after_s: float = 0.0) -> None:
        """What `b` says to a beat comes to `a`."""
        self.group.now += after_s
        self.group.send("b", "a", HeartbeatReply(beat.term, beat.round, 0, wall_ms=wall_ms))


def test_a_clock_counts_from_when_its_member_was_asked_however_late_the_answer_is_read() -> None:
    beaten = Beaten()
    beat, asked_at = beaten.beat(), beaten.group.now
    beaten.answer(beat, NOON_MS, after_s=10.0)
    assert beaten.clock == ClockReading(NOON_MS, asked_at, asked_at + 10.0)
    fresh = beaten.beat()
    beaten.answer(beat, NOON_MS)
    assert beaten.clock == ClockReading(NOON_MS, asked_at, asked_at + 10.0)
    beaten.answer(fresh, NOON_MS + 10_000, after_s=0.25)
    assert beaten.clock == ClockReading(NOON_MS + 10_000, asked_at + 10.0, asked_at + 10.25)


def test_a_member_that_needs_longer_than_from_beat_to_beat_is_known() -> None:
    beaten = Beaten()
    asked_at, beats = beaten.group.now, []
    for _ in range(4):
        beats.append(beaten.beat())
        beaten.group.now += 0.1
    beaten.answer(beats[0], NOON_MS)
    assert beaten.clock == ClockReading(NOON_MS, asked_at, beaten.group.now)


def test_an_answer_that_is_lost_is_missed_for_no_longer_than_a_clock_is_known() -> None:
    beaten = Beaten()
    beaten.beat()
    beaten.group.now += MAX_SILENCE_S + 0.01
    beaten.answer(beaten.beat(), NOON_MS)
    assert beaten.clock is not None
    assert beaten.clock.asked_at == beaten.group.now


def test_an_answer_to_appends_tells_no_clock_for_it_does_not_say_when_it_was_asked_for() -> None:
    beaten = Beaten()
    beaten.beat()
    beaten.group.send("b", "a", AppendReply(1, 0, 0, wall_ms=NOON_MS))
    assert beaten.clock is None


Step = tuple[float, bool, bool]


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.booleans(), st.booleans()), max_size=60))
def test_a_clock_that_is_right_lies_between_the_two_bounds_whatever_waits_and_is_lost(steps: list[Step]) -> None:
    """Beats go out, are answered by a clock that is right, and the answers are read later, in their order or not."""
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
