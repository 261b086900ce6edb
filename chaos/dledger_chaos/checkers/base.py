"""Interface of checkers: what they are given, and what they answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from dledger_chaos.history import Event, Operation, Outcome, read_events, read_operations

from .messages import Messages

RUN_FILE: Final = "run.json"
EXAMPLES: Final = 10

Result: TypeAlias = Literal["valid", "invalid", "unknown"]
"""`unknown`: what was recorded does not suffice to tell. It counts as a failure."""


class NodeFiles(msgspec.Struct, frozen=True):
    """Where one stopped node left its files: its data directory, and everything that its process printed."""

    node_id: str
    group: str
    directory: str
    logs: list[str]


class RunInfo(msgspec.Struct, frozen=True):
    """What `run.json` says: the circumstances of a run. Paths are absolute, or relative to the run's directory."""

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
    """When all faults were healed; from here on the group has to serve everything."""
    end_ns: int
    nodes: list[NodeFiles]
    versions: dict[str, str] = {}
    other_logs: list[str] = []
    """What processes printed that are no nodes: name servers."""


@dataclass(frozen=True)
class RunData:
    """A finished run: all nodes stopped, all files where `info` says."""

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
    def _by_function(self) -> Mapping[tuple[str, str], list[Operation]]:
        found: dict[tuple[str, str], list[Operation]] = {}
        for operation in self.operations:
            found.setdefault((operation.workload, operation.f), []).append(operation)
        return found

    @cached_property
    def messages(self) -> Messages:
        """What was sent, and what lay in the queues at the end."""
        groups: dict[str, frozenset[str]] = {}
        if self.info.target == "local":
            for node in self.info.nodes:
                groups[node.group] = groups.get(node.group, frozenset()) | {node.node_id}
        return Messages(self.operations, trims="retention" in self.info.workloads, readers=groups)

    def of(self, workload: str, *functions: str, outcome: Outcome | None = None) -> list[Operation]:
        """A workload's operations of these functions in the order of their calls."""
        found = [operation for f in functions for operation in self._by_function.get((workload, f), ())]
        if outcome is not None:
            found = [operation for operation in found if operation.outcome == outcome]
        if len(functions) > 1:
            found.sort(key=lambda operation: operation.id)
        return found

    def path(self, name: str) -> Path:
        """The absolute path of a file that `info` names."""
        return self.directory / name


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one promise came through a run. `figures` are numbers worth showing, `examples` at most ten lines."""

    name: str
    promise: str
    result: Result
    summary: str
    examples: Sequence[str] = ()
    figures: Mapping[str, int | float | str] = field(default_factory=dict)


@dataclass(slots=True)
class Findings:
    """Collects what speaks against a promise, and what keeps one from telling."""

    violations: int = 0
    examples: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def violation(self, example: str) -> None:
        """The promise is broken, for instance like this."""
        self.violations += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(example)

    def doubt(self, reason: str) -> None:
        """It cannot be told whether the promise was kept."""
        self.doubts.append(reason)

    def judged(self, checked: int, what: str, **figures: float | str) -> Judgement:
        """The judgement on `checked` things called `what`. Nothing checked proves nothing: unknown."""
        figures = {"checked": checked, **figures}
        if self.violations:
            return Judgement("invalid", f"{self.violations:,} violations in {checked:,} {what}", self.examples, figures)
        if self.doubts:
            return Judgement("unknown", self.doubts[0], self.doubts[:EXAMPLES], figures)
        if not checked:
            return Judgement("unknown", f"no {what} to check", (), figures)
        return Judgement("valid", f"{checked:,} {what}", (), figures)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A checker's answer; the registry adds who says it and about which promise."""

    result: Result
    summary: str
    examples: Iterable[str] = ()
    figures: Mapping[str, int | float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Check:
    """A line of the registry: `judge` holds `promise` against runs of any of `workloads` on any of `targets`.

    Where none is named, any will do; `happened` says whether a run has what it judges. `name` is also the promise's id
    in `docs/promises.md`, where `promise` stands.
    """

    name: str
    promise: str
    judge: Callable[[RunData], Judgement]
    workloads: frozenset[str] = frozenset()
    targets: frozenset[str] = frozenset()
    happened: Callable[[RunData], bool] = lambda _: True

    def applies(self, run: RunData) -> bool:
        """Whether the run had what this judges."""
        if self.targets and run.info.target not in self.targets:
            return False
        if self.workloads and self.workloads.isdisjoint(run.info.workloads):
            return False
        return self.happened(run)

    def check(self, run: RunData) -> Verdict:
        """The verdict on a run."""
        judgement = self.judge(run)
        return Verdict(
            self.name,
            self.promise,
            judgement.result,
            judgement.summary,
            tuple(judgement.examples)[:EXAMPLES],
            judgement.figures,
        )
