"""Idempotent sends: a repetition gets the answer of the first send, and nothing is stored again.

A sender opts in, by ext field `idempotent` = `true` or by the topic's attribute of that name. A send repeats another
send if both have the same topic, producer group, unique key (`UNIQ_KEY`) and `reconsumeTimes`, *and* the same body,
flags and properties. A batch is compared as a whole, with the same messages in the same order. All other sends are
stored. Messages without a unique key are left out, and so are topics that the broker itself writes to: retry,
dead-letter and system topics.

Stored sends are found by the replicated table of remembered sends, and then compared byte by byte. Only this leader
knows the sends in flight. A repetition of a send in flight waits for its outcome, and is then checked again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, compress
from operator import attrgetter
from typing import Final, cast

import msgspec

from dledger.environment import Environment
from dledger.errors import LogError, TrimmedError
from dledger.format import COMMAND_HEADER_BYTES
from dledger.log import Log
from dledger.statemachine import Leadership
from dledger.types import Membership
from dledger_base.invariants import invariant
from dledger_broker.config import BrokerConfig
from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.delay.recalls import records_with_key
from dledger_broker.features.delay.records import DUE_TOPICS
from dledger_broker.features.sending.dedup.comparing import MAX_FACTS_BYTES, FirstSend, first_send, may_wait
from dledger_broker.features.sending.dedup.identities import (
    MAX_ROW_BYTES,
    MEMBER_BITS,
    MEMBERS,
    NO_ROWS,
    UnitRows,
    identities_of,
    rows_of,
    rows_of_runs,
)
from dledger_broker.features.sending.dedup.remembered import (
    REMEMBER_SENDS,
    REMEMBERED,
    RememberedSends,
    RememberSends,
    write_command,
)
from dledger_broker.features.sending.dedup.rows import ROW_BYTES, Row
from dledger_broker.features.sending.unit import PendingSend
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.units import FixedRows
from dledger_remoting.errors import QuorumTimeout
from dledger_remoting.hotpath import send_response_frame

WAIT_S: Final = 0.01
"""Interval at which a repetition checks whether the first send has its outcome."""
KEEP_FETCHED_S: Final = 0.1
"""Time for which a stored send that was read from disk is kept in memory.

The next candidate of the same identity may have to be read, too. On a file system that cannot report which data is in
memory, all candidates would otherwise be read each time.
"""
MAX_CANDIDATES: Final = 64
"""Maximum number of rows with the identity of a send that are compared with the send, newest first."""
MAX_NOT_INDEXED: Final = 2_048
"""Maximum number of rows that are not indexed. Further rows are indexed once answers have left."""
MAX_SEEN: Final = 4_096
"""Maximum number of recent families kept in memory, besides families with sends in flight."""
ROWS_PER_SLICE: Final = 4_096
"""Number of rows indexed at a time, in half a millisecond, or somewhat more while the index meets new memory."""

_UNIQUE_KEY: Final = attrgetter("unique_key")
_SIZE: Final = attrgetter("size")
_SEED: Final = attrgetter("seed")
"""Getter of a field of a `PendingSend`, as the two above."""


class IdempotentSends:
    """Judge of whether sends are repetitions."""

    def __init__(
        self,
        machine: BrokerMachine,
        log: Log,
        env: Environment,
        config: BrokerConfig,
        counters: BrokerCounters,
        requests: Requests,
        due_messages: DueMessages,
    ) -> None:
        self._machine = machine
        self._due_messages = due_messages
        machine.on_state(self._keep_table)
        self._log = log
        self._env = env
        self._timeout_s = config.quorum_timeout_ms / 1000
        self._timeout_ms = config.quorum_timeout_ms
        self._counters = counters
        self._requests = requests
        self._fail = requests.fail
        self._recent_members: dict[int, int] = {}
        """Members by family: all that are remembered or in flight, and perhaps more.

        A family that is missing has no send in flight, and all its remembered sends are indexed.
        """
        self._staged: deque[tuple[int, UnitRows]] = deque()
        self._recent_limit = MAX_SEEN
        self._unindexed_rows = 0
        self._fetched_sends: dict[tuple[int, int], bytes] = {}
        """Stored sends that were read from disk, by position and size of the read."""
        self._moved_records: dict[bytes, list[bytes]] = {}
        """Records of messages that wait or have waited, by unique key. They are found on disk."""
        self._free_rows = 0
        self._checked_membership: Membership | None = None
        self._term = 0
        self._is_indexed = False
        self._is_compaction_scheduled = False
        self._closed = False

    @property
    def gauge(self) -> Gauge:
        """Gauge of the number of remembered rows."""
        return Gauge(
            "idempotent_keys",
            "Rows that remember idempotent sends: a row is for one send, or for up to 16 with consecutive unique keys",
            lambda: len(self._table),
        )

    def _keep_table(self, state: BrokerState) -> None:
        self._table = state.table(REMEMBERED)

    def close(self) -> None:
        """Stop checking waiting sends again."""
        self._closed = True

    # ---------------------------------------------------------------- arrival of a send

    def admit(self, sends: list[PendingSend]) -> tuple[list[PendingSend], UnitRows]:
        """Return the sends of a unit that are to be stored, and the rows that remember them.

        The others are repetitions, and are or will be answered.
        """
        table = self._table
        if not table.window_ms:
            return sends, NO_ROWS
        keys, seeds = list(map(_UNIQUE_KEY, sends)), list(map(_SEED, sends))
        if not self._is_indexed and not self._index_some():
            return self._hold_opted_in(sends, seeds), NO_ROWS
        offsets = _offsets(sends)
        rows = None
        if seeds[0] and seeds.count(seeds[0]) == len(seeds):
            rows = rows_of_runs(keys, seeds[0], offsets)
        if rows is None:
            rows = rows_of(identities_of(keys, seeds), offsets)
        if len(rows.families) <= self._free_rows and self._add_if_new(rows, table):
            self._free_rows -= len(rows.families)
            return sends, rows
        return self._admit_each(sends, identities_of(keys, seeds))

    def without_repetitions(self, sends: list[PendingSend]) -> list[PendingSend]:
        """Return the sends that repeat no stored send and no send in flight. The others are or will be answered.

        The returned sends are remembered once `admit` has them.
        """
        if not self._table.window_ms:
            return sends
        seeds = list(map(_SEED, sends))
        if not self._is_indexed and not self._index_some():
            return self._hold_opted_in(sends, seeds)
        self._index_applied()
        in_flight = self._in_flight()
        identities = identities_of(list(map(_UNIQUE_KEY, sends)), seeds)
        return [
            send
            for send, identity in zip(sends, identities, strict=True)
            if not self._is_repetition(send, identity, in_flight)
        ]

    def _add_if_new(self, rows: UnitRows, table: RememberedSends) -> bool:
        """Return True if none of these sends was seen before or occurs twice. They count as seen from now on."""
        recent = self._recent_members
        self._load_members(table.known([family for family in rows.families if family not in recent]))
        for family, members in zip(rows.families, rows.members, strict=True):
            known_members = recent.get(family, 0)
            if known_members & members:
                return False
            recent[family] = known_members | members
        return True

    def _load_members(self, families: Iterable[int]) -> None:
        """Load the remembered members of families that were not seen."""
        for family in families:
            self._recent_members[family] = self._table.members(family)

    def _admit_each(
        self, sends: Sequence[PendingSend], identities: Sequence[int]
    ) -> tuple[list[PendingSend], UnitRows]:
        """Admit sends as `admit` does, if there may be repetitions among them."""
        self._index_applied()
        admitted: list[PendingSend] = []
        identities_kept: list[int] = []
        in_flight = self._in_flight()
        free_rows = self._free_rows
        for send, identity in zip(sends, identities, strict=True):
            if self._is_repetition(send, identity, in_flight):
                continue
            if identity and free_rows <= 0:
                self._counters.idempotent_overflow += 1
                # Without a seed, the send is answered as not remembered.
                admitted.append(msgspec.structs.replace(send, seed=0))
                identities_kept.append(0)
            else:
                admitted.append(send)
                identities_kept.append(identity)
                if identity:
                    free_rows -= 1  # If the send joins a row, even more room is left.
                    family = identity >> MEMBER_BITS
                    in_flight[family] = in_flight.get(family, 0) | identity & MEMBERS
        if not admitted:
            return admitted, NO_ROWS
        rows = rows_of(identities_kept, _offsets(admitted))
        self._load_members([family for family in rows.families if family not in self._recent_members])
        _add(self._recent_members, rows)
        self._free_rows -= len(rows.families)
        return admitted, rows

    def _is_repetition(self, send: PendingSend, identity: int, in_flight: Mapping[int, int]) -> bool:
        """Return whether a send is or may be a repetition, which is or will be answered."""
        family, member = identity >> MEMBER_BITS, identity & MEMBERS
        if in_flight.get(family, 0) & member:
            self._hold(send.request)
            return True
        candidates = [row for row in self._table.find(family) if row.members & member] if identity else []
        try:
            return bool(candidates) and self._is_stored(candidates, send)
        except (LogError, OSError) as error:  # The candidate for the first send cannot be read here at present.
            self._fail(send.request, error)
            return True

    def _in_flight(self) -> dict[int, int]:
        """Return the members, by family, that were proposed and are not applied."""
        in_flight: dict[int, int] = {}
        for _, rows in self._staged:
            _add(in_flight, rows)
        return in_flight

    def _hold_opted_in(self, sends: Sequence[PendingSend], seeds: Sequence[int]) -> list[PendingSend]:
        """Hold opted-in sends until all rows are indexed (after a change of leadership), and return all others."""
        for send in compress(sends, seeds):
            self._hold(send.request)
        return [send for send, seed in zip(sends, seeds, strict=True) if not seed]

    def _hold(self, request: Request) -> None:
        """Check a send again later. A repetition waits until the first send has its outcome."""
        self._counters.idempotent_waits += 1
        self._env.call_later(WAIT_S, partial(self._retry, request))

    def _retry(self, request: Request) -> None:
        if self._closed:
            return
        if self._env.now() - request.received < self._timeout_s:
            self._requests.resume(request, None)
        else:
            remark = f"the same message has waited for a majority for {self._timeout_ms} ms: it may be stored"
            self._fail(request, QuorumTimeout(remark))

    # ---------------------------------------------------------------- comparing with what is stored

    def _is_stored(self, rows: Sequence[Row], send: PendingSend) -> bool:
        """Return whether a stored send equals this send, or has to be read from disk. An equal send is answered.

        `rows` are the rows of the same identity, newest first.
        """
        request, fields, target, messages, size = send.request, send.fields, send.target, send.messages, send.size
        segment_bytes, applied_position = self._log.segment_bytes, self._machine.applied_position
        kept_from = max(target.created_position, self._log.first_position)
        is_trimmed = False
        for members, position in rows[:MAX_CANDIDATES]:
            count = members.bit_count()
            bytes_left = min(applied_position, position - position % segment_bytes + segment_bytes) - position
            if position < kept_from or size > bytes_left:
                is_trimmed = is_trimmed or target.created_position <= position < self._log.first_position
                continue
            read_size = size if count == 1 else min(MAX_ROW_BYTES, bytes_left)
            if may_wait(messages):
                read_size = min(read_size + count * MAX_FACTS_BYTES, bytes_left)
            stored = self._fetched_sends.get((position, read_size)) or self._log.read_nowait(position, read_size)
            if stored is None:
                self._requests.spawn(request, self._fetch(request, position, read_size))
                return True
            original = first_send(stored, count, fields, target, messages)
            if original is not None:
                self._answer(send, original)
                return True
        return is_trimmed and may_wait(messages) and self._is_moved(send)

    def _is_moved(self, send: PendingSend) -> bool:
        """Return whether an equal message was moved.

        A waiting message is written again before its part of the log is trimmed.
        """
        request, messages, unique_key = send.request, send.messages, send.unique_key
        records = self._moved_records.get(unique_key)
        if records is None:
            self._requests.spawn(request, self._find_moved(request, unique_key))
            return True
        for record in records:
            original = first_send(record, 1, send.fields, send.target, messages)
            if original is not None:
                self._answer(send, original)
                return True
        return False

    async def _find_moved(self, request: Request, unique_key: bytes) -> None:
        """Search for records of messages that wait, then check the request again."""
        records: list[bytes] = []
        for topic in sorted(DUE_TOPICS):
            records += [data for data, _ in await records_with_key(self._machine, topic, unique_key)]
        self._moved_records[unique_key] = records
        self._requests.resume(request, None)
        self._env.call_later(KEEP_FETCHED_S, partial(self._forget_moved, unique_key))

    def _forget_moved(self, unique_key: bytes) -> None:
        self._moved_records.pop(unique_key, None)

    async def _fetch(self, request: Request, position: int, size: int) -> None:
        """Read a candidate from disk, then check the request again."""
        try:
            self._fetched_sends[position, size] = await self._log.read(position, size)
        except TrimmedError:
            pass
        self._requests.resume(request, None)
        self._env.call_later(KEEP_FETCHED_S, partial(self._forget_fetched, position, size))

    def _forget_fetched(self, position: int, size: int) -> None:
        self._fetched_sends.pop((position, size), None)

    def _answer(self, send: PendingSend, original: FirstSend) -> None:
        """Answer as the first send was answered."""
        request, unique_key, asks = send.request, send.unique_key, send.fields.idempotent
        self._counters.idempotent_repeats += 1
        if request.is_oneway:
            request.origin.settle()
            return
        handle = b""
        if original.due is not None:
            handle = self._due_messages.recall_handle(send.target.topic, original.due, unique_key)
        frame = send_response_frame(
            request.opaque,
            b",".join(original.ids),
            original.queue_id,
            original.queue_offset,
            unique_key,
            serialize_type=request.serialize_type,
            recall_handle=handle,
            remembered=True if asks else None,
            repeated=asks,
            with_trace_switch=request.is_from_go,
        )
        request.origin.answer_frame(frame)

    # ---------------------------------------------------------------- a unit goes into the log

    def command(self, rows: UnitRows) -> bytearray:
        """Return room for the command that remembers sends, to be filled by `write_command` once their position is
        known.

        The room is empty if there is nothing to remember, or if not every member understands the command. Then the
        sends are stored, but not remembered.
        """
        count = len(rows.families)
        if not count:
            return bytearray()
        membership = self._log.membership
        if membership is not self._checked_membership:
            if not self._machine.understood_by_all(RememberSends):
                return bytearray()
            self._checked_membership = membership
        return bytearray(COMMAND_HEADER_BYTES + ROW_BYTES * count)

    def remember_command(self, sends: Sequence[PendingSend], rows: UnitRows) -> FixedRows | None:
        """Return the command for a unit with one record for each of these sends, or None if `command` has no room.

        Their records may be larger than the sends, for example records of messages that wait until they are due.
        """
        command = self.command(rows)
        if not command:
            return None
        families, members, offsets = rows
        number_at = {offset: number for number, offset in enumerate(_offsets(sends))}
        numbers = [number_at[offset] for offset in offsets]

        def write(payload: memoryview, positions: Sequence[int | None]) -> None:
            invariant(None not in positions, "the topic where messages wait is there when they are stored")
            known_positions = cast(Sequence[int], positions)
            start = known_positions[0]
            relative_rows = UnitRows(families, members, [known_positions[number] - start for number in numbers])
            write_command(command, relative_rows, start)
            payload[:] = command[COMMAND_HEADER_BYTES:]
            self.staged(start, relative_rows)

        return FixedRows(REMEMBER_SENDS, len(command) - COMMAND_HEADER_BYTES, write)

    def staged(self, position: int, rows: UnitRows) -> None:
        """Note that a unit was proposed, whose first record is to be stored at `position`."""
        self._staged.append((position, rows))
        self._unindexed_rows += len(rows.families)

    def refused(self, position: int) -> None:
        """Forget the sends at `position` and behind it, because the disk has no space for them.

        Clients repeat refused sends, as the answer demands. Otherwise the repetition would wait for the refused send,
        and its answer would say that the message may be stored.
        """
        while self._staged and self._staged[-1][0] >= position:
            self._staged.pop()

    def applied(self) -> None:
        """Tidy up later if necessary, because a unit was applied and answered."""
        needs_compaction = self._unindexed_rows > MAX_NOT_INDEXED or len(self._recent_members) > self._recent_limit
        if needs_compaction and not self._is_compaction_scheduled:
            self._is_compaction_scheduled = True
            self._env.call_soon(self._compact)

    def _compact(self) -> None:
        self._is_compaction_scheduled = False
        if self._is_indexed and not self._closed:
            self._index_applied()
            if len(self._recent_members) > self._recent_limit:
                self._keep_only_in_flight()

    def _keep_only_in_flight(self) -> None:
        in_flight = self._in_flight()
        self._recent_members = {}
        self._load_members(in_flight)
        for family, members in in_flight.items():
            self._recent_members[family] |= members
        self._recent_limit = len(in_flight) + MAX_SEEN

    def _index_applied(self) -> None:
        """Index the rows that are applied, and drop them from the sends in flight."""
        staged, applied_position = self._staged, self._machine.applied_position
        while staged and staged[0][0] < applied_position:
            staged.popleft()
        table = self._table
        while not table.index(ROWS_PER_SLICE):
            pass  # Rows that have expired meanwhile are indexed first, so that a slice may not be enough.
        self._unindexed_rows = sum(len(rows.families) for _, rows in staged)
        self._free_rows = table.max_rows - len(table) - self._unindexed_rows

    def members_changed(self) -> None:
        """Check again whether all members understand the command."""
        self._checked_membership = None

    def new_leadership(self, leadership: Leadership) -> None:
        """Forget the sends in flight of another leadership. A handover that fails changes nothing."""
        self._checked_membership = None
        if not leadership.is_leader or (leadership.ready and leadership.term != self._term):
            self._term = leadership.term if leadership.is_leader else 0
            self._recent_members.clear()
            self._staged.clear()
            self._unindexed_rows = self._free_rows = 0
            self._is_indexed = False
            self._index_all(self._term)

    def _index_all(self, term: int) -> None:
        """Index the rows that earlier leaders remembered, a slice at a time."""
        if term and term == self._term and not self._closed and not self._index_some():
            self._env.call_soon(partial(self._index_all, term))

    def _index_some(self) -> bool:
        """Index a slice of the rows, and return whether all rows are indexed."""
        self._is_indexed = self._table.index(ROWS_PER_SLICE)
        return self._is_indexed


def _offsets(sends: Sequence[PendingSend]) -> list[int]:
    """Return the offsets in a unit at which the sends begin, and the offset at which the last send ends."""
    return list(accumulate(map(_SIZE, sends), initial=0))


def _add(members_by_family: dict[int, int], rows: UnitRows) -> None:
    """Add the members of a unit to the members of their families."""
    for family, members in zip(rows.families, rows.members, strict=True):
        members_by_family[family] = members_by_family.get(family, 0) | members
