"""Writer of units: message records and commands that are in the log together or not at all.

A unit's records get their queue offsets in the turn that stages it. They are taken only for topics of the applied
state. An entry's records apply before its commands, so a follower would drop records of a topic whose creation is under
way. Queues that are being deleted take no records either.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from struct import Struct
from typing import Final, NamedTuple, Protocol

from dledger.environment import Environment
from dledger.errors import LogFullError, NotLeaderError, TooLargeError
from dledger.format import COMMAND_HEADER_BYTES, encode_command
from dledger.log import Log
from dledger.store.disk import Buffer
from dledger_base.invariants import invariant
from dledger_broker.kernel.commands import Command, RawCommand
from dledger_broker.kernel.contexts import QueueRun
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import QueueState, TopicState
from dledger_broker.kernel.records import MessageParts, encode_run, magic_of, tail_of
from dledger_broker.kernel.store_clock import StoreClock
from dledger_broker.kernel.units import FixedRows, NewRecord, NotStored, Place, Stored, Told, Unknown
from dledger_broker.views.scan import tag_code_of
from dledger_remoting.hosts import IPV4_HOST_BYTES, HostAddress, pack_host
from dledger_remoting.record import MAX_PROPERTIES_BYTES, RECORD_HEAD_SHARED, SYS_HOST_MASK


class UnitFill(Protocol):
    """Encoder of a unit."""

    def __call__(self, position: int, now_ms: int) -> Sequence[Buffer]:
        """Return the unit's records, given the position of their first byte and the store time in ms."""


_FIELDS: Final = Struct(">iiqi")
_pack_shared: Final = RECORD_HEAD_SHARED.pack


class LogWriter:
    """Writer that stages units for a leader. `store_host` is the numeric address in records."""

    def __init__(self, machine: BrokerMachine, log: Log, env: Environment, store_host: HostAddress) -> None:
        self._machine = machine
        self._log = log
        self._env = env
        self._store_host = pack_host(store_host)
        self._clock = StoreClock(env)

    def write(
        self,
        records: Sequence[NewRecord],
        commands: Sequence[Command | FixedRows] = (),
        *,
        done: Told,
        privileged: bool = False,
    ) -> None:
        """Store records and commands as one unit. Every member must understand the commands' kinds.

        `done` is called with the outcome exactly once, in a later turn. Records whose topic or queue is not there are
        left out. If nothing remains, nothing is staged. `privileged` is for commands that make room, see `Log.stage`.

        Raises `NotLeaderError`, `BusyError`, `LogFullError` and `TooLargeError`, with nothing staged and no offset
        used. Too large are properties above their limit, and a unit above the log's limit of 8 MiB within one segment.
        """
        if not self._log.is_ready:
            status = self._log.status()
            raise NotLeaderError(status.leader_id, status.term)
        unit = WrittenUnit(self._prepared(records), len(records), self._section(commands), self._store_host, done)
        if unit.size:
            self.stage_unit(unit.size, unit.fill, unit.section.data, unit, privileged=privileged)
        elif commands:
            unit.section.complete([None] * len(records))
            self._log.stage(0, None, commands=unit.section.data, context=unit, privileged=privileged)
        else:
            self._env.call_soon(unit.applied)

    def stage_unit(
        self,
        size: int,
        fill: UnitFill,
        commands: bytes | bytearray = b"",
        context: object = None,
        *,
        privileged: bool = False,
    ) -> int:
        """Stage a unit as `Log.stage` does. The store times that `fill` is given never go back within a term."""
        now_ms = self._clock.next_ms(self._machine.leadership.term)
        return self._log.stage(
            size, partial(fill, now_ms=now_ms), commands=commands, context=context, privileged=privileged
        )

    def _prepared(self, records: Sequence[NewRecord]) -> list[_Prepared]:
        """Return the records that are to be written."""
        prepared: list[_Prepared] = []
        topics: dict[str, TopicState | None] = {}
        for number, record in enumerate(records):
            name, properties = record.topic.encode(), record.properties
            invariant(
                len(record.born_host) == IPV4_HOST_BYTES and not record.sys_flag & SYS_HOST_MASK,
                "a record's hosts are IPv4",
                record=record,
            )
            # This raises here an error that encoding would otherwise raise after an offset is handed out.
            _FIELDS.pack(record.flag, record.sys_flag, record.born_ms, record.reconsume_times)
            if len(properties) > MAX_PROPERTIES_BYTES:
                raise TooLargeError(f"a record has {len(properties)} bytes of properties, of {MAX_PROPERTIES_BYTES}")
            if record.topic not in topics:
                topics[record.topic] = self._machine.topic(record.topic)
            topic = topics[record.topic]
            if topic is not None and 0 <= record.queue_id < topic.queue_count:
                message = (record.body, tail_of(name, properties), record.flag, tag_code_of(properties))
                queue = topic.queue(record.queue_id)
                prepared.append(_Prepared(number, record, queue, magic_of(name), message, record.size))
        return prepared

    def _section(self, commands: Sequence[Command | FixedRows]) -> _Section:
        """Return the commands in the form of an entry's section, with room for rows."""
        section = _Section(bytearray(), [])
        registry = self._machine.commands
        for command in commands:
            if isinstance(command, FixedRows):
                kind, encoded = command.kind, encode_command(command.kind, bytes(command.size))
                invariant(issubclass(registry.types[kind], RawCommand), "rows are a raw command's payload", kind=kind)
                section.rows.append((len(section.data) + COMMAND_HEADER_BYTES, command))
            else:
                kind, encoded = registry.kind_of(type(command)), registry.encode(command)
            self._machine.overlay.require_understood(kind)
            section.data.extend(encoded)
        return section


class _Prepared(NamedTuple):
    """A record that is to be written: its number among the given records, and the arguments of its encoding."""

    number: int
    record: NewRecord
    queue: QueueState
    magic: int
    message: MessageParts
    size: int


class _Section(NamedTuple):
    """The commands of a unit, and the places in it where the payloads of its rows begin."""

    data: bytearray
    rows: list[tuple[int, FixedRows]]

    def complete(self, positions: Sequence[int | None]) -> None:
        """Fill in the rows."""
        view = memoryview(self.data)
        for at, rows in self.rows:
            rows.write(view[at : at + rows.size], positions)


class WrittenUnit:
    """The context of a unit (`StagedContext`)."""

    __slots__ = ("_done", "_places", "_prepared", "_store_host", "extent", "runs", "section", "size")

    def __init__(
        self, prepared: Sequence[_Prepared], records: int, section: _Section, store_host: bytes, done: Told
    ) -> None:
        self._prepared = prepared
        self._places: list[Place | None] = [None] * records
        self._store_host = store_host
        self._done = done
        self.section = section
        self.size = sum(entry.size for entry in prepared)
        self.runs: list[QueueRun] = []
        self.extent = (0, 0)

    def fill(self, position: int, now_ms: int) -> Sequence[Buffer]:
        """Return the unit's records, see `UnitFill`, and complete the rows."""
        prepared, self._prepared = self._prepared, ()
        positions = list(accumulate((entry.size for entry in prepared), initial=position))
        self.extent = (position, positions[-1])
        named: list[int | None] = [None] * len(self._places)
        for entry, at in zip(prepared, positions[:-1], strict=True):
            named[entry.number] = at
        self.section.complete(named)
        parts: list[bytes] = []
        units_of: dict[QueueState, list[bytes]] = {}
        for (number, record, queue, magic, message, size), at in zip(prepared, positions[:-1], strict=True):
            self._places[number] = Place(at, size, queue.staged_offset)
            shared = _pack_shared(
                record.sys_flag,
                record.born_ms,
                record.born_host,
                now_ms,
                self._store_host,
                record.reconsume_times,
                record.prepared_position,
            )
            encode_run(parts, units_of.setdefault(queue, []), (message,), (size,), at, queue, magic, shared)
        self.runs = [(queue, queue.staged_offset, b"".join(units)) for queue, units in units_of.items()]
        return parts

    def applied(self) -> None:
        """Report the places of the records to `done`."""
        self._done(Stored(tuple(self._places)))

    def dropped(self, full: LogFullError | None) -> None:
        """Report to `done` that nothing was stored, or that the outcome is unknown."""
        self._done(Unknown() if full is None else NotStored(full))
