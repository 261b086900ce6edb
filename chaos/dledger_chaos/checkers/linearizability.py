"""Checks that objects behave as if there were one copy and one operation at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from dledger_chaos.linear import LOG, REGISTER, STEP_LIMIT, Call, Model, check_linearizable, shortest
from dledger_chaos.linear_calls import call_of

from .base import Findings, Judgement, RunData

EXISTENCE: Final = replace(REGISTER, name="existence", initial=(False,))
"""Register of a name's existence: `create` and `delete` write true and false."""

FINAL: Final = "final"
"""Name of the process that reads every key once more after all faults are healed."""


def linearizable(run: RunData) -> Judgement:
    """Check that each key's history is linearizable."""
    return _judge_linearizability(run, "registers", model_of)


def catalogue(run: RunData) -> Judgement:
    """Check that topics and consumer groups exist from their creation to their deletion, under every leader."""
    return _judge_linearizability(run, "catalogue", lambda _: EXISTENCE)


def request_modes(run: RunData) -> Judgement:
    """Check that a group's mode of consuming a topic is a linearizable register of each broker group."""
    return _judge_linearizability(run, "assignments", lambda _: REGISTER)


def _judge_linearizability(run: RunData, workload: str, model_of_key: Callable[[str], Model]) -> Judgement:
    findings, checked, steps = Findings(), 0, 0
    histories: dict[str, list[Call]] = {}
    for operation in run.operations:
        call = call_of(operation) if operation.workload == workload else None
        if call is not None:
            histories.setdefault(operation.key, []).append(call)
    reads = sum(call.f == "read" for calls in histories.values() for call in calls)
    if histories and not reads:
        findings.doubt("nothing was read, so any writes would pass")
    final = [operation for operation in run.of(workload, "read") if operation.process == FINAL]
    for key in sorted(histories.keys() - {operation.key for operation in final if operation.outcome == "ok"}):
        if final:
            findings.doubt(f"{key} was not read at the end: what was acknowledged last may be lost")
    for key, calls in histories.items():
        checked += len(calls)
        model = model_of_key(key)
        found = check_linearizable(calls, model)
        steps += found.steps
        if found.result == "unknown":
            findings.doubt(f"{key}: not decided in {STEP_LIMIT} steps")
        elif found.result == "invalid":
            story = shortest(calls, model)
            findings.violation(f"{key}: no order of " + ", ".join(map(str, story[-12:])))
    return findings.judged(checked, "operations", keys=len(histories), reads=reads, steps=steps)


def model_of(key: str) -> Model:
    """Return the model of a key's object."""
    return LOG if key.startswith("log") else REGISTER
