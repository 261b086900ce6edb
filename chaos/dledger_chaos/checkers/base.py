"""Interface of checkers: the data of a run as their argument, and a judgement as their answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec

from dledger_chaos.history import Event, Operation, Outcome, read_events, read_operations
from dledger_sim.seen.findings import EXAMPLES, Findings, Judgement, Result

from .messages import Messages

RUN_FILE: Final = "run.json"


class NodeFiles(msgspec.Struct, frozen=True):
    """Files of one stopped node: its data directory, and the output of its process."""

    node_id: str
    group: str
    directory: str
    logs: list[str]


class RunInfo(msgspec.Struct, frozen=True):
    """Content of `run.json`: the circumstances of a run. Paths are absolute, or relative to the run's directory."""

    seed: int
    command: str
    """The command line that repeats the run."""
    target: str
    workloads: list[str]
    faults: list[str]
    started_at: str
    """Wall clock, ISO 8601 with offset."""
    begin_ns: int
    heal_ns: int
    """Time at which all faults were healed."""
    end_ns: int
    nodes: list[NodeFiles]
    versions: dict[str, str] = {}
    other_logs: list[str] = []
    """Output of the name servers."""


@dataclass(frozen=True)
class RunData:
    """A finished run: all nodes have stopped, and all files are at the paths of `info`."""

    info: RunInfo
    operations: Sequence[Operation]
    events: Sequence[Event]
    directory: Path

    @classmethod
    def load(cls, directory: Path) -> RunData:
        """Read a run's directory. Raises `HistoryError`, `OSError` or `msgspec.DecodeError`."""
        info = msgspec.json.decode((directory / RUN_FILE).read_bytes(), type=RunInfo)
        return cls(info, read_operations(directory), read_events(directory), directory)

    @cached_property
    def _operations_by_function(self) -> Mapping[tuple[str, str], list[Operation]]:
        operations: dict[tuple[str, str], list[Operation]] = {}
        for operation in self.operations:
            operations.setdefault((operation.workload, operation.f), []).append(operation)
        return operations

    @cached_property
    def messages(self) -> Messages:
        """The sent messages, and the content of the queues at the end."""
        groups: dict[str, frozenset[str]] = {}
        if self.info.target == "local":
            for node in self.info.nodes:
                groups[node.group] = groups.get(node.group, frozenset()) | {node.node_id}
        return Messages(self.operations, trims="retention" in self.info.workloads, readers=groups)

    def of(self, workload: str, *functions: str, outcome: Outcome | None = None) -> list[Operation]:
        """Return a workload's operations of these functions, in the order of their calls."""
        found = [operation for f in functions for operation in self._operations_by_function.get((workload, f), ())]
        if outcome is not None:
            found = [operation for operation in found if operation.outcome == outcome]
        if len(functions) > 1:
            found.sort(key=lambda operation: operation.id)
        return found

    def path(self, name: str) -> Path:
        """Return the absolute path of a file that `info` names."""
        return self.directory / name


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of one check of a run. `figures` are numbers for the report, `examples` at most ten lines."""

    name: str
    promise: str
    result: Result
    summary: str
    examples: Sequence[str] = ()
    figures: Mapping[str, int | float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Check:
    """A line of the registry: `judge` compares `promise` with runs of any of `workloads` on any of `targets`.

    An empty set stands for all workloads or targets. `happened` returns True if a run has the events that are judged.
    `docs/promises.md` lists the check with `name` and `promise`.
    """

    name: str
    promise: str
    judge: Callable[[RunData], Judgement]
    workloads: frozenset[str] = frozenset()
    targets: frozenset[str] = frozenset()
    happened: Callable[[RunData], bool] = lambda _: True

    def applies(self, run: RunData) -> bool:
        """Return True if the run had the subject of this check."""
        if self.targets and run.info.target not in self.targets:
            return False
        if self.workloads and self.workloads.isdisjoint(run.info.workloads):
            return False
        return self.happened(run)

    def check(self, run: RunData) -> Verdict:
        """Return the verdict on a run."""
        judgement = self.judge(run)
        return Verdict(
            self.name,
            self.promise,
            judgement.result,
            judgement.summary,
            tuple(judgement.examples)[:EXAMPLES],
            judgement.figures,
        )


__all__ = ["RUN_FILE", "Check", "Findings", "Judgement", "NodeFiles", "Result", "RunData", "RunInfo", "Verdict"]
