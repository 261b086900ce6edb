"""Check of the queues and modes of consumption that brokers assign to the members of a consumer group."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from dledger_chaos.history import Operation
from dledger_chaos.workloads import assignments
from dledger_remoting.assignments import RequestMode

from .base import Findings, Judgement, RunData

_SETTLE_FUNCTIONS: Final = {mode: f"settle-{mode}" for mode in (RequestMode.POP, RequestMode.PULL)}
_EXPECTED_QUEUES: Final = f"each must be one of the {assignments.QUEUES} queues of a broker group, and named once"
Rows: TypeAlias = list[tuple[str, str]]
"""An answer: how a queue is consumed, and its name."""


def assigned(run: RunData) -> Judgement:
    """Check that answers name queues of the topic, none twice, and that members share the queues at the end.

    In mode PULL each queue belongs to one of the remaining members. In mode POP each member has all queues.
    """
    findings, checked = Findings(), 0
    broker_groups = sorted({node.group for node in run.info.nodes})
    all_queues = assignments.queues_of(broker_groups, RequestMode.PULL)
    for answer in run.of(assignments.NAME, "assign", outcome="ok"):
        rows = _decode_rows(answer)
        checked += bool(rows)
        queues = [queue for _, queue in rows]
        if len(set(queues)) < len(queues) or not all_queues.issuperset(queues):
            findings.violation(f"{answer.process} is to consume {queues} (operation {answer.id}): {_EXPECTED_QUEUES}")
        if any(mode != RequestMode.PULL for mode, _ in rows):
            findings.violation(f"{answer.process} is to pop (operation {answer.id}), but the mode is PULL")
    for mode, f in _SETTLE_FUNCTIONS.items():
        _judge_end(run, broker_groups, mode, f, findings)
    members = {operation.process for operation in run.of(assignments.NAME, "assign", outcome="ok")}
    return findings.judged(checked, "assignments", members=len(members))


def _judge_end(run: RunData, broker_groups: list[str], mode: str, f: str, findings: Findings) -> None:
    """Judge the last answers to the members that remain at the end."""
    for broker_group in broker_groups:
        last: dict[str, Operation] = {}
        for answer in run.of(assignments.NAME, f, outcome="ok"):
            if answer.key.endswith(f"@{broker_group}"):
                last[answer.process] = answer
        shares = {process: _decode_rows(answer) for process, answer in last.items()}
        if not shares:
            findings.doubt(f"{broker_group}: no member was assigned queues in mode {mode} after healing")
        elif not assignments.shared(list(shares.values()), broker_groups, mode):
            findings.violation(f"{broker_group}: in mode {mode} members do not share the topic at the end: {shares}")


def _decode_rows(answer: Operation) -> Rows:
    return msgspec.convert(answer.value or [], Rows)
