"""History of a run: the requests of clients and their outcomes, and the events in the cluster.

A run leaves two files of JSON lines, each line one record of this module:

| file | record | written |
|---|---|---|
| `history.jsonl` | `Operation` | at the end of the operation, or when the recorder is closed |
| `events.jsonl` | `Event` | at once |

All times are nanoseconds of one clock, the machine's `CLOCK_MONOTONIC`, which every process of the machine shares.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Literal, Self, TypeAlias, TypeVar

import msgspec

from dledger_base.invariants import invariant
from dledger_sim.seen.history import Operation, Outcome

HISTORY_FILE: Final = "history.jsonl"
EVENTS_FILE: Final = "events.jsonl"
BUFFER_BYTES: Final = 256 * 1024

_RecordT = TypeVar("_RecordT")
_LARGEST_EDN_INTEGER: Final = 2**63 - 1


class HistoryError(Exception):
    """A history file cannot be read; the text names file and line."""


EventKind: TypeAlias = Literal["fault-begin", "fault-end", "status", "usage", "process", "phase", "note"]
"""Kind of an `Event`."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event in the cluster or in the run, or a sample of a node.

    | kind | name | fields |
    |---|---|---|
    | `fault-begin` | kind of the fault | `id`, `class`, `nodes`, `fault` (its values) |
    | `fault-end` | kind of the fault | `id`, `injected` (false: the target refused the fault) |
    | `status` | | sample of `node`: `role`, `term`, `commit_index`, `ready` |
    | `usage` | | sample of `node`: `resident_bytes`, `open_files` |
    | `process` | `started`, `ended` | `pid`, and for `ended` `expected` |
    | `phase` | `workloads`, `heal`, `converged`, `final-reads`, `stopped` | |
    | `note` | a text | `trouble` (true: the run cannot be judged) |
    """

    kind: EventKind
    time_ns: int
    name: str = ""
    node: str = ""
    fields: dict[str, object] = {}


class Invocation:
    """An operation under way; exactly one of `ok`, `fail` and `info` ends it."""

    __slots__ = ("_end_ns", "_is_open", "_operation", "_recorder")

    def __init__(self, recorder: Recorder, operation: Operation) -> None:
        self._recorder = recorder
        self._operation = operation
        self._is_open = True
        self._end_ns: int | None = None

    def at(self, time_ns: int) -> None:
        """Set the time of the end. Use this for operations that another process reports afterwards."""
        self._end_ns = time_ns

    @property
    def value(self) -> object:
        """The requested value."""
        return self._operation.value

    def ok(self, value: object = msgspec.UNSET, **extras: object) -> None:
        """End the operation with success.

        `value` is a value that was found; it replaces the requested value. `extras` are further data of the answer.
        """
        changes: dict[str, object] = {} if value is msgspec.UNSET else {"value": value}
        self._end("ok", changes, extras)

    def fail(self, error: str = "", code: int | None = None, **extras: object) -> None:
        """End the operation without effect: it certainly never takes effect."""
        self._end("fail", {"error": error, "code": code}, extras)

    def info(self, error: str = "", code: int | None = None, **extras: object) -> None:
        """End the operation with an unknown outcome: it may have taken effect, or may still do so."""
        self._end("info", {"error": error, "code": code}, extras)

    def abandon(self) -> Operation:
        """Return the record of an operation whose end was not seen; for the recorder only."""
        self._is_open = False
        return msgspec.structs.replace(self._operation, error="no end was seen")

    def _end(self, outcome: Outcome, changes: dict[str, object], extras: dict[str, object]) -> None:
        invariant(self._is_open, "an operation ends once", id=self._operation.id, f=self._operation.f)
        self._is_open = False
        end_ns = self._recorder.clock() if self._end_ns is None else self._end_ns
        all_extras = {**self._operation.extras, **extras}
        self._recorder.complete(self._operation, outcome, {**changes, "complete_ns": end_ns, "extras": all_extras})


class Recorder:
    """Writes the history of one run into `directory`; use it as a context manager, from one thread.

    `clock` returns nanoseconds. `counts` has the number of ended operations by outcome.
    """

    def __init__(self, directory: Path, *, clock: Callable[[], int] = time.monotonic_ns) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.clock = clock
        self.counts: dict[Outcome, int] = {"ok": 0, "fail": 0, "info": 0}
        self._history = _LineFile(directory / HISTORY_FILE)
        self._events = _LineFile(directory / EVENTS_FILE)
        self._pending: dict[int, Invocation] = {}
        self._next_id = 0

    def invoke(
        self,
        workload: str,
        process: str,
        f: str,
        key: str = "",
        value: object = None,
        *,
        at_ns: int | None = None,
        **request_extras: object,
    ) -> Invocation:
        """Begin an operation, now or at `at_ns`. Its extras begin with `request_extras`."""
        begin_ns = self.clock() if at_ns is None else at_ns
        operation = Operation(self._next_id, workload, process, f, key, value, "info", begin_ns, extras=request_extras)
        self._next_id += 1
        invocation = Invocation(self, operation)
        self._pending[operation.id] = invocation
        return invocation

    def complete(self, operation: Operation, outcome: Outcome, changes: dict[str, object]) -> None:
        """Write an operation that has ended; called by its `Invocation`."""
        del self._pending[operation.id]
        self.counts[outcome] += 1
        self._history.write(msgspec.structs.replace(operation, outcome=outcome, **changes))

    def event(
        self, kind: EventKind, name: str = "", *, node: str = "", time_ns: int | None = None, **fields: object
    ) -> None:
        """Record an event, now or at `time_ns`."""
        self._events.write(Event(kind, self.clock() if time_ns is None else time_ns, name, node, fields))
        self._events.flush()

    def close(self) -> None:
        """Write operations that have not ended as `info`, and close the files."""
        for invocation in list(self._pending.values()):
            self._history.write(invocation.abandon())
        self._pending.clear()
        self._history.close()
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _LineFile:
    """JSON lines, appended through a buffer."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb", buffering=BUFFER_BYTES)
        self._encoder = msgspec.json.Encoder()

    def write(self, record: Operation | Event) -> None:
        self._file.write(self._encoder.encode(record) + b"\n")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_operations(directory: Path) -> list[Operation]:
    """Return the operations of a run in the order of their calls. Raises `HistoryError`."""
    operations = list(_read_lines(directory / HISTORY_FILE, Operation))
    operations.sort(key=lambda operation: operation.id)
    return operations


def read_events(directory: Path) -> list[Event]:
    """Return the events of a run in the order of their times. Raises `HistoryError`."""
    events = list(_read_lines(directory / EVENTS_FILE, Event))
    events.sort(key=lambda event: event.time_ns)
    return events


def _read_lines(path: Path, kind: type[_RecordT]) -> Iterator[_RecordT]:
    decoder = msgspec.json.Decoder(kind)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield decoder.decode(line)
                except msgspec.DecodeError as error:
                    raise HistoryError(f"{path}, line {number}: {error}") from error
    except OSError as error:
        raise HistoryError(f"{path} cannot be read: {error.strerror}") from error


def edn_lines(operations: Iterable[Operation]) -> Iterator[str]:
    """Yield the history in Jepsen's form for Knossos and Elle, with one map per invocation and per completion.

    Values are `[key value]` pairs, as in `jepsen.independent`. In Knossos a process runs one operation at a time, and
    none after an `info`. So processes are numbered anew: an operation gets the lowest free number.
    """
    moments: list[tuple[int, int, Operation]] = []
    for operation in operations:
        moments.append((operation.invoke_ns, 1, operation))
        if operation.complete_ns is not None:
            moments.append((operation.complete_ns, 0, operation))
    # A call at the same nanosecond comes before a completion. The two then overlap, which is the weaker claim.
    moments.sort(key=lambda moment: (moment[0], -moment[1], moment[2].id))
    free: list[int] = []
    processes: dict[int, int] = {}
    process_count = 0
    for index, (moment_ns, is_call, operation) in enumerate(moments):
        if is_call:
            if free:
                free.sort(reverse=True)
                processes[operation.id] = free.pop()
            else:
                processes[operation.id] = process_count
                process_count += 1
        process = processes[operation.id]
        if not is_call and operation.outcome != "info":
            free.append(process)
        kind = "invoke" if is_call else operation.outcome
        value = None if is_call and operation.f == "read" else operation.value
        yield (
            f"{{:index {index}, :type :{kind}, :process {process}, :f :{operation.f}, "
            f":value [{_to_edn(operation.key)} {_to_edn(value)}], :time {moment_ns}}}"
        )


def write_edn(operations: Iterable[Operation], path: Path) -> None:
    """Write `edn_lines` into a file."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in edn_lines(operations))


def _to_edn(value: object) -> str:
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value) if abs(value) <= _LARGEST_EDN_INTEGER else f"{value}N"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(value, list | tuple):
        return "[" + " ".join(map(_to_edn, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_to_edn(name)} {_to_edn(item)}" for name, item in value.items()) + "}"
    raise HistoryError(f"{value!r} has no EDN form")


__all__ = [
    "EVENTS_FILE",
    "HISTORY_FILE",
    "Event",
    "EventKind",
    "HistoryError",
    "Invocation",
    "Operation",
    "Outcome",
    "Recorder",
    "edn_lines",
    "read_events",
    "read_operations",
    "write_edn",
]
