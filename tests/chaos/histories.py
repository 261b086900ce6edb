"""Histories written by hand: records of clients and nodes, line by line."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TypeVar

import msgspec

from dledger_chaos.checkers.base import Check, RunData, RunInfo, Verdict
from dledger_chaos.checkers.registry import CHECKS
from dledger_chaos.history import Event, Operation
from dledger_chaos.workloads.records import Found, Pulled, Seen, Stored, StoredBatch

QUEUE = "T/broker-a/0"
NODES = ("broker-a-n0", "broker-a-n1", "broker-a-n2")
RECORD_BYTES = 100
Told = TypeVar("Told")
"""A history, or a builder of one."""


class History:
    """Builder of a run. Every line takes one tick of 10 ns, from call to end, and begins after the line before."""

    def __init__(self, workload: str = "append") -> None:
        self.workload = workload
        self.operations: list[Operation] = []
        self.events: list[Event] = []
        self._ticks = count(10, 10)

    def add(
        self, f, key, value, outcome="ok", process="p", begin=None, end=None, error="", code=None, answer=None, **extras
    ):
        """Add any operation."""
        tick = next(self._ticks)
        invoke, complete = tick if begin is None else begin, tick + 9 if end is None else end
        told = extras if answer is None else {**msgspec.structs.asdict(answer), **extras}
        number = len(self.operations)
        self.operations.append(
            Operation(number, self.workload, process, f, key, value, outcome, invoke, complete, error, code, told)
        )
        return self

    def send(self, value, offset=None, queue=QUEUE, f="send", key="T", **more):
        """Add a message, acknowledged at `offset` unless that is None."""
        if offset is None:
            return self.add(f, key, value, more.pop("outcome", "info"), **more)
        place = msgspec.structs.asdict(Stored(queue, offset, offset * RECORD_BYTES))
        return self.add(f, key, value, **place, **more)

    def batch(self, values, first=None, queue=QUEUE):
        """Add a batch, acknowledged from `first` on unless that is None."""
        if first is None:
            return self.add("send-batch", "T", values, "info")
        offsets = [first + number for number in range(len(values))]
        place = StoredBatch(queue, offsets, [offset * RECORD_BYTES for offset in offsets])
        return self.add("send-batch", "T", values, **msgspec.structs.asdict(place))

    def pull(
        self, values, first=0, node=NODES[0], queue=QUEUE, f="pull", offset=None, code=0, next_offset=None, **more
    ):
        """Add a node's answer with messages from `first` on. None stands for an offset without a message."""
        found = [
            Seen(first + number, value, (first + number) * RECORD_BYTES)
            for number, value in enumerate(values)
            if value is not None
        ]
        answer = Pulled(
            node, first if offset is None else offset, code, first + len(values) if next_offset is None else next_offset
        )
        return self.add(f, queue, found, process=f"{f}-{node}", answer=answer, **more)

    def end(self, values, first=0, queue=QUEUE, nodes=NODES, **others):
        """Add the end of a run: every node shows these values. `others` are nodes that show other values."""
        self.add("bounds", queue, [first, first + len(values)])
        for node in nodes:
            self.pull(others.get(node.rpartition("-")[2], values), first, node, queue, f="scan")
        return self

    def view(self, offset, value, found, queue=QUEUE):
        """Add a search for a message by its id."""
        return self.add("view", queue, [offset, value], **msgspec.structs.asdict(Found(found, "id")))

    def event(self, kind, time_ns, name="", node="", **fields):
        """Add an event of the cluster."""
        self.events.append(Event(kind, time_ns, name, node, fields))
        return self

    def run(
        self, directory=Path("nowhere"), files=(), target="local", faults=(), other_logs=(), end_ns=10**9
    ) -> RunData:
        """Return the run, as read from its directory. `files` are the nodes' files."""
        # Through JSON, as a run is read: tuples become lists.
        operations = msgspec.json.decode(msgspec.json.encode(self.operations), type=list[Operation])
        started = "2026-01-01T00:00:00+00:00"
        info = RunInfo(
            7, "dledger chaos run", target, [self.workload], list(faults), started, 0, 0, end_ns, list(files)
        )
        info = msgspec.structs.replace(info, other_logs=list(other_logs))
        return RunData(info, operations, self.events, directory)


def applies(name: str, run: RunData) -> bool:
    """Return whether a check applies to a run."""
    return named(name).applies(run)


def verdict(name: str, run: RunData) -> Verdict:
    """Return the verdict of one check on a run."""
    assert applies(name, run)
    return named(name).check(run)


def named(name: str) -> Check:
    """Return a check of the registry."""
    (check,) = [check for check in CHECKS if check.name == name]
    return check


def stories(**by_result: dict[str, Told]) -> dict[str, tuple[Told, str]]:
    """Return histories by name, each with the result that a check has for it."""
    return {name: (history, result) for result, told in by_result.items() for name, history in told.items()}
