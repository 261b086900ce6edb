"""Checks of the nodes' logs, read from their directories with the store's own readers once all processes have ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dledger.errors import LogError
from dledger.format import HEADER_BYTES, iter_commands
from dledger.store.commit import SavedCommit
from dledger.store.disk import OsDisk
from dledger.store.identity import read_identity
from dledger.store.segments import DIRECTORY, list_positions, segment_path
from dledger.store.verify import VerifyReport, compare, inspect, verify
from dledger.types import EntryKind
from dledger_broker.features import COMMANDS
from dledger_broker.features.delay.commands import AddTimers, CancelTimers, EndTimers, FireTimers, MoveTimers, TimerRows
from dledger_broker.features.delay.records import DUE_TOPICS
from dledger_broker.features.delay.table import STRETCH_BYTES
from dledger_broker.kernel.topics import DeleteTopic, PutTopic
from dledger_chaos.workloads import passing
from dledger_chaos.workloads.payload import decode_payload
from dledger_chaos.workloads.records import Stored, extras, value_of
from dledger_remoting.errors import RemotingError
from dledger_remoting.record import RecordRef, decode_record, scan_records

from .base import Findings, Judgement, RunData
from .messages import Place

_TOPIC_KINDS = frozenset({COMMANDS.kind_of(PutTopic), COMMANDS.kind_of(DeleteTopic)})
_TIMER_COMMANDS = {COMMANDS.kind_of(kind): kind for kind in (AddTimers, FireTimers, MoveTimers, CancelTimers)}
_DUE_TOPIC_NAMES = frozenset(topic.encode() for topic in DUE_TOPICS)
_END_KIND = COMMANDS.kind_of(EndTimers)


def diverged(run: RunData) -> Judgement:
    """Check that the committed bytes of all replicas are equal, verify, and have every acknowledged message."""
    findings = Findings()
    compared = 0
    for group, directories in _group_directories(run).items():
        try:
            reports = [verify(str(directory)) for directory in directories]
            comparison = compare(reports)
        except (LogError, OSError) as error:
            findings.doubt(f"the logs of {group} cannot be read: {error}")
            continue
        for problem in comparison.problems:
            findings.violation(problem)
        if comparison.first_difference >= 0:
            findings.violation(f"{group}: the logs differ at byte {comparison.first_difference}")
        compared += comparison.end_position - comparison.first_position
        acknowledged = max(
            (sent.position for sent in run.messages.acknowledged() if sent.place and group_of(sent.place) == group),
            default=-1,
        )
        if comparison.end_position <= acknowledged:
            findings.doubt(
                f"{group}: only the bytes up to {comparison.end_position} are known to be committed on all nodes, the "
                f"acknowledgements reach {acknowledged}"
            )
    return findings.judged(compared, "bytes on every replica")


def unqueued(run: RunData) -> Judgement:
    """Check that a topic's committed records and the messages in its queues agree, in offset and position."""
    findings, checked, kept = Findings(), 0, first_kept(run)
    for group, directories in _group_directories(run).items():
        try:
            first_position, records = _read_records(directories, run.messages.read_topics())
        except (LogError, RemotingError, OSError) as error:
            findings.doubt(f"the log of {group} cannot be read: {error}")
            continue
        for queue in run.messages.queues.values():
            if queue.bounds is None or group_of((queue.key, 0)) != group:
                continue
            first, end = queue.bounds
            expected = [(offset, position) for (key, offset), position in records if key == queue.key]
            for offset, position in expected:
                if offset < first and position >= kept.get(group, 0):
                    findings.violation(
                        f"{queue.key} begins at {first}, the log keeps the record of {offset} at byte {position}"
                    )
            for node, contents in queue.nodes.items():
                if not queue.read_through(node):
                    continue
                for offset, position in expected:
                    if first <= offset < end:
                        checked += 1
                        found = contents.get(offset)
                        if found is None or found.position != position:
                            there = "nothing" if found is None else f"the record at byte {found.position}"
                            findings.violation(
                                f"{queue.key}@{offset}: its record is at byte {position}, {node} shows {there}"
                            )
                for offset in sorted(contents.keys() - dict(expected).keys()):
                    # The log may have been trimmed after the queue was read. A message below its first position was
                    # still in the log at that time.
                    if contents[offset].position >= first_position:
                        findings.violation(f"{queue.key}@{offset}: {node} shows a message that is not in the log")
    return findings.judged(checked, "records, counted on every node")


def orphaned(run: RunData) -> Judgement:
    """Check that every acknowledged message is in the log, and no message lies where its topic does not exist."""
    findings, checked, trimmed = Findings(), 0, 0
    changes: dict[str, dict[str, list[tuple[int, bool]]]] = {}
    logs: dict[str, _PassingLog] = {}
    for group, directories in _group_directories(run).items():
        try:
            changes[group], logs[group] = topic_changes(directories), _read_passing_log(directories)
        except (LogError, RemotingError, OSError) as error:
            findings.doubt(f"the log of {group} cannot be read: {error}")
    for operation in run.of(passing.NAME, passing.F, outcome="ok"):
        stored = extras(operation, Stored)
        topic, group, _ = stored.queue.split("/")
        if group not in logs:
            continue
        log = logs[group]
        if stored.position >= log.end_position:
            findings.doubt(
                f"{group}: its log is known to be committed up to byte {log.end_position}, {operation.value} was "
                f"acknowledged at {stored.position}"
            )
            continue
        found = log.messages.get(stored.position)
        if stored.position >= log.first_position and found != ((stored.queue, stored.offset), operation.value):
            there = "nothing" if found is None else f"{found[1]} at {found[0][0]}@{found[0][1]}"
            findings.violation(
                f"{operation.value} (operation {operation.id}) was acknowledged at {stored.queue}@{stored.offset}, "
                f"byte {stored.position}, where the log has {there}"
            )
            continue
        before = [exists for end, exists in changes[group].get(topic, ()) if end <= stored.position]
        if not before:
            trimmed += 1
            continue
        checked += 1
        if not before[-1]:
            findings.violation(
                f"{operation.value} (operation {operation.id}) lies at byte {stored.position}, where {topic} "
                "had been deleted: it is in no queue"
            )
    return findings.judged(checked, "acknowledged messages", trimmed=trimmed)


def first_kept(run: RunData) -> dict[str, int]:
    """Return for each group the highest position at which a node's log begins. A group without a log has no entry."""
    kept: dict[str, int] = {}
    for group, directories in _group_directories(run).items():
        starts = [start for directory in directories if (start := _find_first_segment(directory)) is not None]
        if starts:
            kept[group] = max(starts)
    return kept


def _find_first_segment(directory: Path) -> int | None:
    try:
        return min(list_positions(OsDisk(str(directory)), DIRECTORY), default=None)
    except (LogError, OSError):
        return None


def _read_records(directories: Sequence[Path], topics: set[str]) -> tuple[int, list[tuple[Place, int]]]:
    """Return the first position of the log, and for every record of these topics its queue, offset and position.

    Read the log with the highest committed position. Raises `LogError`, `RemotingError` or OSError.
    """
    report = verify(str(_select_furthest(directories)))
    group = Path(report.directory).name.rpartition("-")[0]
    records: list[tuple[Place, int]] = []
    for record, _ in _iter_records(report):
        topic = record.topic.decode()
        if topic in topics:
            place = f"{topic}/{group}/{record.queue_id}", record.queue_offset
            records.append((place, record.physical_offset))
    return report.first_position, records


@dataclass(frozen=True, slots=True)
class _PassingLog:
    """Messages in a log of the topic of the workload `passing`: by position, the place and the value of each.

    Nothing is known outside of [first_position, end_position).
    """

    first_position: int
    end_position: int
    messages: dict[int, tuple[Place, str]]


def _read_passing_log(directories: Sequence[Path]) -> _PassingLog:
    """Read the log with the highest committed position. Raises `LogError`, `RemotingError` or OSError."""
    report = verify(str(_select_furthest(directories)))
    group = Path(report.directory).name.rpartition("-")[0]
    messages: dict[int, tuple[Place, str]] = {}
    for record, block in _iter_records(report):
        if record.topic == passing.TOPIC.encode():
            place = f"{passing.TOPIC}/{group}/{record.queue_id}", record.queue_offset
            messages[record.physical_offset] = place, decode_payload(decode_record(block, record.position).body)
    return _PassingLog(report.first_position, report.committed_position, messages)


def _iter_records(report: VerifyReport) -> Iterator[tuple[RecordRef, bytes]]:
    """Yield every committed record of a log, and the bytes of its entry."""
    for meta in inspect(report.directory, report.first_index):
        if meta.kind == EntryKind.GROUP and meta.position < report.committed_position:
            size = meta.size - HEADER_BYTES - meta.channel
            block = _read_bytes(report, meta.position + HEADER_BYTES, size)
            for record in scan_records(block):
                yield record, block


def topic_changes(directories: Sequence[Path]) -> dict[str, list[tuple[int, bool]]]:
    """Return for each topic the positions in the log at which it is created (True) or deleted (False), in order.

    Raises `LogError` or OSError.
    """
    changes: dict[str, list[tuple[int, bool]]] = {}
    for end, kind, payload in _iter_commands(verify(str(_select_furthest(directories)))):
        if kind in _TOPIC_KINDS:
            command = COMMANDS.decode(kind, payload)
            if isinstance(command, PutTopic):
                changes.setdefault(command.config.topic_name, []).append((end, True))
            elif isinstance(command, DeleteTopic):
                changes.setdefault(command.topic, []).append((end, False))
    return changes


def given_up(run: RunData, findings: Findings) -> Counter[str]:
    """Count the delayed messages that were removed while they waited, because retention trimmed a full disk."""
    given_up_counts: Counter[str] = Counter()
    for group, directories in _group_directories(run).items():
        try:
            given_up_counts.update(_iter_given_up(verify(str(_select_furthest(directories)))))
        except (LogError, RemotingError, OSError) as error:
            findings.doubt(f"the log of {group} cannot be read: {error}")
    return given_up_counts


def _iter_given_up(report: VerifyReport) -> Iterator[str]:
    values: dict[int, str] = {}
    for record, block in _iter_records(report):
        if record.topic in _DUE_TOPIC_NAMES:
            message = decode_record(block, record.position)
            values[record.physical_offset] = value_of(message.body, message.reconsume_times)
    waiting: set[int] = set()
    for _, kind, payload in _iter_commands(report):
        if kind == _END_KIND:
            below = EndTimers.from_payload(payload).below
            ended = {position for position in waiting if position < below + -below % STRETCH_BYTES}
            waiting -= ended
            yield from (values[position] for position in ended)
        elif kind in _TIMER_COMMANDS:
            positions = {position for _, position, _ in TimerRows.unpack(payload)}
            if _TIMER_COMMANDS[kind] is AddTimers:
                waiting |= positions & values.keys()
            else:
                waiting -= positions


def _iter_commands(report: VerifyReport) -> Iterator[tuple[int, int, bytes | memoryview]]:
    """Yield every committed command of a log: the end of its entry, its kind and its payload."""
    for meta in inspect(report.directory, report.first_index):
        if meta.kind == EntryKind.GROUP and meta.channel and meta.position < report.committed_position:
            for kind, payload in iter_commands(_read_bytes(report, meta.end - meta.channel, meta.channel)):
                yield meta.end, kind, payload


def _select_furthest(directories: Sequence[Path]) -> Path:
    """Return the directory of the log with the highest committed position."""
    return max(directories, key=lambda directory: SavedCommit.read(OsDisk(str(directory))))


def _read_bytes(report: VerifyReport, position: int, size: int) -> bytes:
    identity = read_identity(OsDisk(report.directory), report.directory)
    assert identity is not None, "it has just been verified"
    start = position - position % identity.segment_bytes
    with (Path(report.directory) / segment_path(start)).open("rb") as segment:
        segment.seek(position - start)
        return segment.read(size)


def _group_directories(run: RunData) -> dict[str, list[Path]]:
    groups: dict[str, list[Path]] = {}
    for node in run.info.nodes:
        groups.setdefault(node.group, []).append(run.path(node.directory))
    return groups


def group_of(place: Place) -> str:
    """Return the broker group of a place's queue."""
    return place[0].split("/")[1]
