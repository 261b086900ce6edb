"""Checks of what brokers tell the members of a consumer group to consume, and how."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from dledger_chaos.history import Operation
from dledger_chaos.workloads import assignments
from dledger_remoting.assignments import RequestMode

from .base import Findings, Judgement, RunData

_SETTLED: Final = {mode: f"settle-{mode}" for mode in (RequestMode.POP, RequestMode.PULL)}
_ONCE: Final = f"each has to be one of the {assignments.QUEUES} of a broker group, and there once"
Rows: TypeAlias = list[tuple[str, str]]
"""An answer: how a queue is consumed, and its name."""


def assigned(run: RunData) -> Judgement:
    """An answer names queues of the topic, none twice, to be pulled; at the end the members share them as was set.

    In mode PULL each queue is of one of the members that are left, in mode POP each member has all queues.
    """
    findings, checked = Findings(), 0
    broker_groups = sorted({node.group for node in run.info.nodes})
    known = assignments.queues_of(broker_groups, RequestMode.PULL)
    for answer in run.of(assignments.NAME, "assign", outcome="ok"):
        rows = _rows(answer)
        checked += bool(rows)
        queues = [queue for _, queue in rows]
        if len(set(queues)) < len(queues) or not known.issuperset(queues):
            findings.violation(f"{answer.process} is to consume {queues} (operation {answer.id}): {_ONCE}")
        if any(mode != RequestMode.PULL for mode, _ in rows):
            findings.violation(f"{answer.process} is to pop (operation {answer.id}), which nobody has said")
    for mode, f in _SETTLED.items():
        _judge_end(run, broker_groups, mode, f, findings)
    members = {operation.process for operation in run.of(assignments.NAME, "assign", outcome="ok")}
    return findings.judged(checked, "assignments", members=len(members))


def _judge_end(run: RunData, broker_groups: list[str], mode: str, f: str, findings: Findings) -> None:
    """The last answers of the members that are left."""
    for broker_group in broker_groups:
        last: dict[str, Operation] = {}
        for answer in run.of(assignments.NAME, f, outcome="ok"):
            if answer.key.endswith(f"@{broker_group}"):
                last[answer.process] = answer
        shares = {process: _rows(answer) for process, answer in last.items()}
        if not shares:
            findings.doubt(f"{broker_group}: nobody was told what to consume in mode {mode} when all was healed")
        elif not assignments.shared(list(shares.values()), broker_groups, mode):
            findings.violation(f"{broker_group}: in mode {mode} members do not share the topic at the end: {shares}")


def _rows(answer: Operation) -> Rows:
    return msgspec.convert(answer.value or [], Rows)
