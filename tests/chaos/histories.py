"""Histories written by hand: what clients and nodes might have said, line by line."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import msgspec

from dledger_chaos.checkers.base import Check, RunData, RunInfo, Verdict
from dledger_chaos.checkers.registry import CHECKS
from dledger_chaos.history import Event, Operation
from dledger_chaos.workloads.records import Found, Pulled, Seen, Stored, StoredBatch

QUEUE = "T/broker-a/0"
NODES = ("broker-a-n0", "broker-a-n1", "broker-a-n2")
RECORD_BYTES = 100


class History:
    """Builds a run; every line takes one tick of 10 ns, from its call to its end, and begins after the line before."""

    def __init__(self, workload: str = "append") -> None:
        self.workload = workload
        self.operations: list[Operation] = []
        self.events: list[Event] = []
        self._ticks = count(10, 10)

    def add(
        self, f, key, value, outcome="ok", process="p", begin=None, end=None, error="", code=None, answer=None, **extras
    ):
        """Any operation."""
        tick = next(self._ticks)
        invoke, complete = tick if begin is None else begin, tick + 9 if end is None else end
        told = extras if answer is None else {**msgspec.structs.asdict(answer), **extras}
        number = len(self.operations)
        self.operations.append(
            Operation(number, self.workload, process, f, key, value, outcome, invoke, complete, error, code, told)
        )
        return self

    def send(self, value, offset=None, queue=QUEUE, f="send", key="T", **more):
        """A message, acknowledged at `offset` unless that is None."""
        if offset is None:
            return self.add(f, key, value, more.pop("outcome", "info"), **more)
        place = msgspec.structs.asdict(Stored(queue, offset, offset * RECORD_BYTES))
        return self.add(f, key, value, **place, **more)

    def batch(self, values, first=None, queue=QUEUE):
        """A batch, acknowledged from `first` on unless that is None."""
        if first is None:
            return self.add("send-batch", "T", values, "info")
        offsets = [first + number for number in range(len(values))]
        place = StoredBatch(queue, offsets, [offset * RECORD_BYTES for offset in offsets])
        return self.add("send-batch", "T", values, **msgspec.structs.asdict(place))

    def pull(
        self, values, first=0, node=NODES[0], queue=QUEUE, f="pull", offset=None, code=0, next_offset=None, **more
    ):
        """A node answers with messages from `first` on; None stands for an offset without a message."""
        found = [
            Seen(first + number, value, (first + number) * RECORD_BYTES)
            for number, value in enumerate(values)
            if value is not None
        ]
        answer = Pulled(
            node,
            first if offset is None else offset,
            code,
            first + len(values) if next_offset is None else next_offset,
        )
        return self.add(f, queue, found, process=f"{f}-{node}", answer=answer, **more)

    def end(self, values, first=0, queue=QUEUE, nodes=NODES, **others):
        """The end of a run: every node shows these values; `others` are nodes that show something else."""
        self.add("bounds", queue, [first, first + len(values)])
        for node in nodes:
            self.pull(others.get(node.rpartition("-")[2], values), first, node, queue, f="scan")
        return self

    def view(self, offset, value, found, queue=QUEUE):
        """A message is looked for by its id."""
        return self.add("view", queue, [offset, value], **msgspec.structs.asdict(Found(found, "id")))

    def event(self, kind, time_ns, name="", node="", **fields):
        """Something happens to the cluster."""
        self.events.append(Event(kind, time_ns, name, node, fields))
        return self

    def run(self, directory=Path("nowhere"), files=(), target="local", faults=(), other_logs=()) -> RunData:
        """The run, as its directory would have it; `files` is what the nodes left."""
        # Through JSON, as a run is read: tuples become lists.
        operations = msgspec.json.decode(msgspec.json.encode(self.operations), type=list[Operation])
        started = "2026-01-01T00:00:00+00:00"
        info = RunInfo(7, "dledger chaos run", target, [self.workload], list(faults), started, 0, 0, 10**9, list(files))
        info = msgspec.structs.replace(info, other_logs=list(other_logs))
        return RunData(info, operations, self.events, directory)


def applies(name: str, run: RunData) -> bool:
    """Whether a run has what a check judges."""
    return named(name).applies(run)


def verdict(name: str, run: RunData) -> Verdict:
    """What one check says of a run."""
    assert applies(name, run)
    return named(name).check(run)


def named(name: str) -> Check:
    """A check of the registry."""
    (check,) = [check for check in CHECKS if check.name == name]
    return check
