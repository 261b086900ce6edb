"""Checks of messages that are delivered later: delayed messages, and messages that consumers have sent back."""

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
"""Tolerance in seconds for early deliveries: brokers compute delays from group time, which may be a little behind."""
RESTING_NS: Final = 10**9
"""Messages due less than this time in ns before the readers stop may be shown only in the final reads."""
QUIET_NS: Final = 10 * 10**9
"""Time in ns after the end of a fault from which a group counts as quiet."""
QUIET_P99_S: Final = 1.0
MIN_QUIET: Final = 150
"""Minimum number of messages for which the 99th percentile is judged.

Runs of a minute have fewer. They must pass on a busy machine, so they judge no times.
"""


@dataclass(slots=True)
class _RequestedMessage:
    """Requests of clients for one message: a single request, or several after an unknown outcome."""

    value: str
    topics: set[str] = field(default_factory=set)
    begin_ns: int = 0
    end_ns: int = 0
    stored: int = 0
    unknown: int = 0
    delay_s: float = math.inf
    """Shortest requested delay in seconds; 0 for a dead letter, and for a request whose end was not seen."""
    recalled: Outcome = "fail"
    """Outcome of the producer's recall: none (`fail`), perhaps (`info`), or acknowledged (`ok`)."""

    def add(self, operation: Operation) -> None:
        self.topics.add(operation.key)
        self.begin_ns = min(self.begin_ns or operation.invoke_ns, operation.invoke_ns)
        self.end_ns = max(self.end_ns, operation.complete_ns or operation.invoke_ns)
        self.stored += operation.outcome == "ok"
        self.unknown += operation.outcome == "info"
        delay_s = extras(operation, Delayed).delay_ms / 1000 if "delay_ms" in operation.extras else 0.0
        self.delay_s = min(delay_s, self.delay_s)


def due(run: RunData) -> Judgement:
    """Check that a delayed message is stored once if acknowledged, at most once if that is unknown, and never too
    early.

    A recalled message is never shown. A message whose recall failed is shown. If wrong clocks may have misled the group
    while a message waited, the check only judges that it is not shown too often. Lateness is reported, not judged.
    """
    findings = Findings()
    shown, clocks = Shown.to_readers_of(run, delays.NAME), WrongClocks(run)
    requested = _collect_requests(run, delays.NAME, "send-delayed")
    for operation in run.of(delays.NAME, "recall"):
        requested[str(operation.value)].recalled = operation.outcome
    figures = _judge_times(run, requested, shown, clocks, findings)
    _judge_copies(run, requested, shown, clocks, findings)
    taken_back_count = sum(message.recalled == "ok" for message in requested.values())
    return findings.judged(len(requested), "delayed messages", taken_back=taken_back_count, **figures)


def punctual(run: RunData) -> Judgement:
    """Check that 99 of 100 messages are delivered within a second after they are due, while a group is quiet."""
    findings = Findings()
    late_s = _collect_quiet_lateness(run)
    if not late_s:
        return findings.judged(0, "delayed messages while nothing was wrong")
    p99 = percentile(late_s, 0.99)
    if p99 > QUIET_P99_S:
        findings.violation(f"one in a hundred messages came {p99:.2f} s late or later, though nothing was wrong")
    return findings.judged(len(late_s), "delayed messages while nothing was wrong", p99_s=round(p99, 3))


def punctuality_measured(run: RunData) -> bool:
    """Return True if enough messages were delivered in quiet times to judge the 99th percentile."""
    return len(_collect_quiet_lateness(run)) >= MIN_QUIET


def sent_back(run: RunData) -> Judgement:
    """Check that a message is stored again if the request to send it back was acknowledged.

    It is stored at most once for each acknowledgement and each request of unknown outcome. It is in the retry topic,
    not before its delay is over, or among the dead letters. It names its origin.
    """
    findings = Findings()
    shown, clocks = Shown.to_readers_of(run, retries.NAME), WrongClocks(run)
    requested = _collect_requests(run, retries.NAME, "send-back")
    figures = _judge_times(run, requested, shown, clocks, findings)
    _judge_copies(run, requested, shown, clocks, findings)
    dead = 0
    for message in requested.values():
        topics = {key.partition("/")[0] for key, _ in shown.places.get(message.value, ())}
        dead += retries.DEAD_LETTERS in topics
        if not topics <= message.topics:
            findings.violation(
                f"{message.value} is in {', '.join(topics)}, it was to go to {', '.join(message.topics)}"
            )
    _judge_origins(run, findings)
    return findings.judged(len(requested), "messages sent back", dead_letters=dead, **figures)


def _judge_origins(run: RunData, findings: Findings) -> None:
    """Judge that each repeated message names its first topic, and its place there."""
    first_positions: dict[str, set[int]] = {}
    for operation in run.of(retries.NAME, "pull", "scan", outcome="ok"):
        if operation.key.startswith(f"{retries.TOPIC}/"):
            for message in seen(operation):
                first_positions.setdefault(message.value, set()).add(message.position)
    for operation in run.of(retries.NAME, "came-again"):
        topic, position = msgspec.convert(operation.value, tuple[str, int])
        if topic != retries.TOPIC or position not in first_positions.get(operation.key, {position}):
            findings.violation(
                f"{operation.key} came again as from byte {position} of the log and {topic}, it was at "
                f"{sorted(first_positions.get(operation.key, ()))} and in {retries.TOPIC}"
            )


def _collect_quiet_lateness(run: RunData) -> list[float]:
    """Return the lateness in seconds of messages that were due and delivered in quiet times."""
    faults = [(begin_ns, end_ns + QUIET_NS) for begin_ns, end_ns in times_of_faults(run)]
    rest_ns = _find_rest_ns(run)
    shown = Shown.to_readers_of(run, delays.NAME)
    late_s: list[float] = []
    for message in _collect_requests(run, delays.NAME, "send-delayed").values():
        first_ns = shown.first_ns.get(message.value)
        due_ns = message.begin_ns + message.delay_s * 1e9
        if first_ns is None or due_ns >= rest_ns - RESTING_NS:
            continue
        if not any(begin_ns <= first_ns and due_ns <= end_ns for begin_ns, end_ns in faults):
            late_s.append((first_ns - due_ns) / 1e9)
    return late_s


def _find_rest_ns(run: RunData) -> int:
    """Return the time in ns at which the workloads have ended. Their readers then rest until the final reads."""
    return next((event.time_ns for event in run.events if event.name == "final-reads"), run.info.end_ns)


def _judge_times(
    run: RunData, requested: dict[str, _RequestedMessage], shown: Shown, clocks: WrongClocks, findings: Findings
) -> dict[str, float]:
    """Judge that no message is shown before its delay is over. Return figures of lateness and of wrong clocks.

    The lateness leaves out messages that are due while readers rest.
    """
    rest_ns = _find_rest_ns(run)
    late_s: list[float] = []
    misled = 0
    for message in requested.values():
        first_ns = shown.first_ns.get(message.value)
        if first_ns is None or not message.delay_s:
            continue
        if clocks.may_mislead(message.begin_ns, first_ns):
            misled += 1
            continue
        waited_s = (first_ns - message.begin_ns) / 1e9
        if waited_s < message.delay_s - EARLY_S:
            findings.violation(f"{message.value} was there after {waited_s:.2f} s, its delay is {message.delay_s:g} s")
        if message.begin_ns + message.delay_s * 1e9 < rest_ns - RESTING_NS:
            late_s.append(waited_s - message.delay_s)
    if not late_s:
        return {"misled": misled}
    return {
        "misled": misled,
        "late_p50_s": round(percentile(late_s, 0.5), 3),
        "late_p99_s": round(percentile(late_s, 0.99), 3),
        "latest_s": round(max(late_s), 3),
        "earliest_s": round(min(late_s), 3),
    }


def _judge_copies(
    run: RunData, requested: dict[str, _RequestedMessage], shown: Shown, clocks: WrongClocks, findings: Findings
) -> None:
    """Judge that an acknowledged message was shown, at most once per acknowledgement or request of unknown outcome."""
    given_up_counts = None
    for message in requested.values():
        places = sorted(shown.places.get(message.value, ()))
        place_text = ", ".join(f"{key}@{offset}" for key, offset in places)
        if message.recalled == "ok":
            if places:
                findings.violation(f"{message.value} was taken back, and is there: {place_text}")
        elif len(places) > message.stored + message.unknown:
            findings.violation(
                f"{message.value} was stored for {message.stored} acknowledgements and {message.unknown} unknown "
                f"outcomes: {place_text}"
            )
        elif (
            message.stored
            and not places
            and message.recalled == "fail"
            and not clocks.may_mislead(message.begin_ns, message.end_ns)
        ):
            if not all(shown.are_whole(run, topic) for topic in message.topics):
                continue
            given_up_counts = given_up(run, findings) if given_up_counts is None else given_up_counts
            if not given_up_counts[message.value]:
                findings.violation(f"{message.value} was acknowledged {message.stored} times, and is not there")


def _collect_requests(run: RunData, workload: str, f: str) -> dict[str, _RequestedMessage]:
    requested: dict[str, _RequestedMessage] = {}
    for operation in run.of(workload, f):
        value = str(operation.value)
        requested.setdefault(value, _RequestedMessage(value)).add(operation)
    return requested
