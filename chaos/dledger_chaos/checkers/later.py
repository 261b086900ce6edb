"""Checks of messages that come later: delayed ones, and those that consumers have sent back."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import msgspec

from dledger_chaos.history import Operation, Outcome
from dledger_chaos.workloads import delays, retries
from dledger_chaos.workloads.records import Delayed, extras, seen

from .base import Findings, Judgement, RunData
from .logs import given_up
from .recovery import percentile, times_of_faults
from .shown import Shown
from .wrong_clocks import WrongClocks

EARLY_S: Final = 0.5
"""A delay is reckoned from group time, which may be a little behind."""
RESTING_NS: Final = 10**9
"""What was due within this time before readers rested may have been shown to them after that."""
QUIET_NS: Final = 10 * 10**9
"""A group is quiet so long after the end of the last fault."""
QUIET_P99_S: Final = 1.0
MIN_QUIET: Final = 150
"""Of fewer messages nothing is said about the latest in a hundred. Runs of a minute have fewer: they have to pass on a
machine that has other work to do, and judge no seconds."""


@dataclass(slots=True)
class _Asked:
    """What clients have asked for one message: once, or again after an unknown outcome."""

    value: str
    topics: set[str] = field(default_factory=set)
    begin_ns: int = 0
    end_ns: int = 0
    stored: int = 0
    unknown: int = 0
    delay_s: float = math.inf
    """The shortest that was asked for; a dead letter has none, nor has a request whose end nobody saw."""
    recalled: Outcome = "fail"
    """Whether its producer has taken it back: not (`fail`), perhaps (`info`), or it was told so (`ok`)."""

    def add(self, operation: Operation) -> None:
        self.topics.add(operation.key)
        self.begin_ns = min(self.begin_ns or operation.invoke_ns, operation.invoke_ns)
        self.end_ns = max(self.end_ns, operation.complete_ns or operation.invoke_ns)
        self.stored += operation.outcome == "ok"
        self.unknown += operation.outcome == "info"
        delay_s = extras(operation, Delayed).delay_ms / 1000 if "delay_ms" in operation.extras else 0.0
        self.delay_s = min(delay_s, self.delay_s)


def due(run: RunData) -> Judgement:
    """A delayed message is there once if it was acknowledged, at most once if nobody knows, and not before it is due.
    What was taken back is never there, and what was not for certain all the same.

    Of what waited while wrong clocks may have misled the group it is judged only that it is not there twice. How late
    messages are is told, not judged.
    """
    findings = Findings()
    shown, clocks = Shown.to_readers_of(run, delays.NAME), WrongClocks(run)
    asked = _asked(run, delays.NAME, "send-delayed")
    for operation in run.of(delays.NAME, "recall"):
        asked[str(operation.value)].recalled = operation.outcome
    figures = _judge_times(run, asked, shown, clocks, findings)
    _count_copies(run, asked, shown, clocks, findings)
    taken_back = sum(one.recalled == "ok" for one in asked.values())
    return findings.judged(len(asked), "delayed messages", taken_back=taken_back, **figures)


def punctual(run: RunData) -> Judgement:
    """While a group is quiet, 99 of 100 messages come within a second after they are due."""
    findings = Findings()
    late_s = _lateness_while_quiet(run)
    if not late_s:
        return findings.judged(0, "delayed messages while nothing was wrong")
    p99 = percentile(late_s, 0.99)
    if p99 > QUIET_P99_S:
        findings.violation(f"one in a hundred messages came {p99:.2f} s late or later, though nothing was wrong")
    return findings.judged(len(late_s), "delayed messages while nothing was wrong", p99_s=round(p99, 3))


def punctuality_measured(run: RunData) -> bool:
    """Whether so many messages came while nothing was wrong that the latest in a hundred says something."""
    return len(_lateness_while_quiet(run)) >= MIN_QUIET


def sent_back(run: RunData) -> Judgement:
    """A message that is sent back is there once for each acknowledgement, and at most once more for each request of
    unknown outcome: in the retry topic, not before its delay is over, or among the dead letters. It says what it was.
    """
    findings = Findings()
    shown, clocks = Shown.to_readers_of(run, retries.NAME), WrongClocks(run)
    asked = _asked(run, retries.NAME, "send-back")
    figures = _judge_times(run, asked, shown, clocks, findings)
    _count_copies(run, asked, shown, clocks, findings)
    dead = 0
    for one in asked.values():
        topics = {key.partition("/")[0] for key, _ in shown.places.get(one.value, ())}
        dead += retries.DEAD_LETTERS in topics
        if not topics <= one.topics:
            findings.violation(f"{one.value} is in {', '.join(topics)}, it was to go to {', '.join(one.topics)}")
    _judge_origins(run, findings)
    return findings.judged(len(asked), "messages sent back", dead_letters=dead, **figures)


def _judge_origins(run: RunData, findings: Findings) -> None:
    """Whatever comes again says which topic it was sent to at first, and where it lay there."""
    first: dict[str, set[int]] = {}
    for operation in run.of(retries.NAME, "pull", "scan", outcome="ok"):
        if operation.key.startswith(f"{retries.TOPIC}/"):
            for one in seen(operation):
                first.setdefault(one.value, set()).add(one.position)
    for operation in run.of(retries.NAME, "came-again"):
        topic, position = msgspec.convert(operation.value, tuple[str, int])
        if topic != retries.TOPIC or position not in first.get(operation.key, {position}):
            findings.violation(
                f"{operation.key} came again as from byte {position} of the log and {topic}, it was at "
                f"{sorted(first.get(operation.key, ()))} and in {retries.TOPIC}"
            )


def _lateness_while_quiet(run: RunData) -> list[float]:
    """How many seconds after they were due messages came, of those that were due and came while nothing was wrong."""
    faults = [(begin_ns, end_ns + QUIET_NS) for begin_ns, end_ns in times_of_faults(run)]
    rest_ns = _rest_ns(run)
    shown = Shown.to_readers_of(run, delays.NAME)
    late_s: list[float] = []
    for one in _asked(run, delays.NAME, "send-delayed").values():
        first_ns = shown.first_ns.get(one.value)
        due_ns = one.begin_ns + one.delay_s * 1e9
        if first_ns is None or due_ns >= rest_ns - RESTING_NS:
            continue
        if not any(begin_ns <= first_ns and due_ns <= end_ns for begin_ns, end_ns in faults):
            late_s.append((first_ns - due_ns) / 1e9)
    return late_s


def _rest_ns(run: RunData) -> int:
    """Readers rest from the end of the workloads until it is their turn to read what there is."""
    return next((event.time_ns for event in run.events if event.name == "final-reads"), run.info.end_ns)


def _judge_times(
    run: RunData, asked: dict[str, _Asked], shown: Shown, clocks: WrongClocks, findings: Findings
) -> dict[str, float]:
    """Nothing is there before its delay is over; how late messages were, and how many wrong clocks may have misled.

    What is due while readers rest says nothing about how late it was.
    """
    rest_ns = _rest_ns(run)
    late_s: list[float] = []
    misled = 0
    for one in asked.values():
        first_ns = shown.first_ns.get(one.value)
        if first_ns is None or not one.delay_s:
            continue
        if clocks.may_mislead(one.begin_ns, first_ns):
            misled += 1
            continue
        waited_s = (first_ns - one.begin_ns) / 1e9
        if waited_s < one.delay_s - EARLY_S:
            findings.violation(f"{one.value} was there after {waited_s:.2f} s, its delay is {one.delay_s:g} s")
        if one.begin_ns + one.delay_s * 1e9 < rest_ns - RESTING_NS:
            late_s.append(waited_s - one.delay_s)
    if not late_s:
        return {"misled": misled}
    return {
        "misled": misled,
        "late_p50_s": round(percentile(late_s, 0.5), 3),
        "late_p99_s": round(percentile(late_s, 0.99), 3),
        "latest_s": round(max(late_s), 3),
        "earliest_s": round(min(late_s), 3),
    }


def _count_copies(
    run: RunData, asked: dict[str, _Asked], shown: Shown, clocks: WrongClocks, findings: Findings
) -> None:
    """Each message came once for each acknowledgement, and at most once more for each send of unknown outcome."""
    lost = None
    for one in asked.values():
        places = sorted(shown.places.get(one.value, ()))
        where = ", ".join(f"{key}@{offset}" for key, offset in places)
        if one.recalled == "ok":
            if places:
                findings.violation(f"{one.value} was taken back, and is there: {where}")
        elif len(places) > one.stored + one.unknown:
            findings.violation(
                f"{one.value} was stored for {one.stored} acknowledgements and {one.unknown} unknown outcomes: {where}"
            )
        elif len(places) < one.stored and one.recalled == "fail" and not clocks.may_mislead(one.begin_ns, one.end_ns):
            if not all(shown.are_whole(run, topic) for topic in one.topics):
                continue
            lost = given_up(run, findings) if lost is None else lost
            if len(places) + lost[one.value] < one.stored:
                findings.violation(f"{one.value} was acknowledged {one.stored} times, and is there {len(places)} times")


def _asked(run: RunData, workload: str, f: str) -> dict[str, _Asked]:
    asked: dict[str, _Asked] = {}
    for operation in run.of(workload, f):
        value = str(operation.value)
        asked.setdefault(value, _Asked(value)).add(operation)
    return asked
