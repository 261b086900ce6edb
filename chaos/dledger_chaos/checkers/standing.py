"""Check of stalled consumers: how long messages take to reach their groups after all faults are healed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from dledger_chaos.workloads.filtered import TAKERS
from dledger_chaos.workloads.records import Seen

from .base import Findings, Judgement, RunData
from .consuming import kept
from .messages import Place
from .recovery import percentile

BOUND_S: Final = 8.0
"""Maximum wait in seconds of a message for its delivery."""
LOCKED_BOUND_S: Final = 75.0
"""Maximum wait in seconds for ordered consumers. A lock that a member could not release lasts a minute."""


@dataclass(frozen=True, slots=True)
class _Group:
    """A consumer group of a workload. Its members' names begin with `members`; `wants` is its filter."""

    workload: str
    members: str
    bound_s: float
    wants: Callable[[str], bool]


def _accepts_all(_value: str) -> bool:
    return True


GROUPS: Final = (
    _Group("consumers", "", BOUND_S, _accepts_all),
    *(_Group("filtered", f"{name}-", BOUND_S, taker.wants) for name, taker in TAKERS.items()),
    _Group("orderly", "", LOCKED_BOUND_S, _accepts_all),
)
WORKLOADS: Final = frozenset(group.workload for group in GROUPS)


def converged(run: RunData) -> bool:
    """Return True if the cluster was whole again at the end."""
    return _find_convergence_ns(run) is not None


def standing_still(run: RunData) -> Judgement:
    """Check that each queue's messages reach each group within a time limit after faults are healed.

    The time counts from the acknowledgement, or from the time at which the cluster was whole again. It leaves out the
    time without members, between the end of the workloads and the start of the final member.
    """
    findings = Findings()
    converged_ns = _find_convergence_ns(run)
    if converged_ns is None:
        return findings.judged(0, "messages that were on their way to a group")
    waits: list[float] = []
    queues: set[str] = set()
    for group in GROUPS:
        late: dict[str, tuple[float, str]] = {}
        for queue, seconds, what in _iter_waits(run, group, converged_ns):
            waits.append(seconds)
            queues.add(queue)
            if seconds > group.bound_s and seconds > late.get(queue, (0.0, ""))[0]:
                late[queue] = seconds, what
        for queue, (seconds, what) in late.items():
            group_name = f"{group.workload} {group.members}".rstrip(" -")
            findings.violation(
                f"{queue} stood still for {group_name}: {what} after {seconds:.1f} s of {group.bound_s:g}"
            )
    if not waits:
        return findings.judged(0, "messages that were on their way to a group")
    return findings.judged(
        len(waits),
        "messages that were on their way to a group",
        queues=len(queues),
        bound_s=BOUND_S,
        locked_bound_s=LOCKED_BOUND_S,
        p99_s=round(percentile(waits, 0.99), 2),
        max_s=round(max(waits), 2),
    )


def _iter_waits(run: RunData, group: _Group, converged_ns: int) -> Iterator[tuple[str, float, str]]:
    """Yield queue, wait in seconds and a description of each message that was not delivered before convergence."""
    first_deliveries = _find_first_deliveries(run, group)
    stop_ns = min((event.time_ns for event in run.events if event.name == "final-reads"), default=run.info.end_ns)
    stays = [one.invoke_ns for one in run.of(group.workload, "stay") if one.key == group.members]
    stay_ns = max(min(stays, default=run.info.end_ns), stop_ns)

    def without_members_ns(until_ns: int) -> int:
        return max(0, min(until_ns, stay_ns) - stop_ns)

    for sent in kept(run, group.workload):
        if sent.place is None or not group.wants(sent.value):
            continue
        since_ns = max(sent.operation.complete_ns or 0, converged_ns)
        delivered_ns = first_deliveries.get(sent.place)
        until_ns = run.info.end_ns if delivered_ns is None else delivered_ns
        if until_ns >= since_ns:
            what = f"{sent} was given to {'no' if delivered_ns is None else 'a'} member"
            yield sent.place[0], (until_ns - since_ns - without_members_ns(until_ns)) / 1e9, what


def _find_first_deliveries(run: RunData, group: _Group) -> dict[Place, int]:
    """Return the time at which each place was first delivered to a member of a group."""
    deliveries: dict[Place, int] = {}
    for operation in run.of(group.workload, "deliver", outcome="ok"):
        if operation.process.startswith(group.members):
            place = operation.key, msgspec.convert(operation.value, Seen).offset
            deliveries[place] = min(operation.complete_ns or 0, deliveries.get(place, operation.complete_ns or 0))
    return deliveries


def _find_convergence_ns(run: RunData) -> int | None:
    return _find_latest(event.time_ns for event in run.events if event.kind == "phase" and event.name == "converged")


def _find_latest(times: Iterable[int]) -> int | None:
    return max(times, default=None)
