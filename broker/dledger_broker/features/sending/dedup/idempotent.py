"""Sends that may be repeated: the second one gets the answer of the first, and nothing is stored again.

Who sends opts in, by ext field `idempotent` = `true` or by the topic's attribute of that name. A send repeats another
one if both have the same topic, producer group, unique key (`UNIQ_KEY`) and `reconsumeTimes`, *and* the same body,
flags and properties; a batch as a whole, with the same messages in the same order. Everything else is stored. Topics
that the broker itself writes to (retry, dead letter, system) are left out, and so are messages without a unique key.

What is stored is found by the replicated table of remembered sends, and then compared byte by byte. What is in flight
is known to this leader only: a repetition waits for its outcome, and is looked at again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate, compress
from operator import itemgetter
from struct import Struct
from typing import Final, cast

from dledger.environment import Environment
from dledger.errors import LogError, TrimmedError
from dledger.format import COMMAND_HEADER_BYTES
from dledger.invariants import invariant
from dledger.log import Log
from dledger.statemachine import Leadership
from dledger.types import Membership
from dledger_broker.config import BrokerConfig
from dledger_broker.features.delay.by_key import records_with_key
from dledger_broker.features.delay.messages import DueMessages
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
from dledger_broker.features.sending.dedup.remembered import REMEMBER_SENDS, REMEMBERED, RememberedSends, RememberSends
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
"""How often a repetition looks whether the first one has its outcome."""
KEEP_FETCHED_S: Final = 0.1
"""How long a stored send that was read from the disk stays at hand: the next candidate of the same identity may have to
be read, too, and a file system that cannot tell what is in memory has all of them read each time."""
MAX_CANDIDATES: Final = 64
"""Rows with the identity of a send with which it is compared, the newest ones."""
MAX_NOT_INDEXED: Final = 2_048
"""Rows are indexed when there are more that are not, once answers have left."""
MAX_SEEN: Final = 4_096
"""Families of lately admitted sends that are kept at hand, besides those of which some are in flight."""
ROWS_PER_SLICE: Final = 4_096
"""Rows indexed at a time, in half a millisecond, and in some more as long as the index meets new memory."""

_UNIQUE_KEY: Final = itemgetter(5)
_SIZE: Final = itemgetter(7)
_SEED: Final = itemgetter(8)
"""Of a `PendingSend`."""


class IdempotentSends:
    """Tells repetitions from other sends."""

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
        self._seen: dict[int, int] = {}
        """Members of families, all that are remembered or in flight, and perhaps more. Of families that are not there,
        nothing is in flight and all that is remembered is indexed.
        """
        self._staged: deque[tuple[int, UnitRows]] = deque()
        self._seen_limit = MAX_SEEN
        self._not_indexed = 0
        self._fetched: dict[tuple[int, int], bytes] = {}
        """Stored sends that were read from the disk, by their position and how much of it was read."""
        self._moved: dict[bytes, list[bytes]] = {}
        """Records of messages that wait, or have, by their unique keys: they are found on the disk."""
        self._room = 0
        self._understood_by: Membership | None = None
        self._term = 0
        self._is_indexed = False
        self._tidies = False
        self._closed = False
        machine.on_leadership_changed.append(self._on_leadership)
        machine.on_members_changed.append(self._on_members)
        machine.on_refused.append(self._on_refused)

    @property
    def gauge(self) -> Gauge:
        """How many rows are remembered."""
        return Gauge(
            "idempotent_keys",
            "Rows that remember idempotent sends, each one of them, or up to 16 whose unique keys follow on",
            lambda: len(self._table),
        )

    def _keep_table(self, state: BrokerState) -> None:
        self._table = state.table(REMEMBERED)

    def close(self) -> None:
        """Look again at nothing that waits."""
        self._closed = True

    # ---------------------------------------------------------------- a send comes

    def admit(self, sends: list[PendingSend]) -> tuple[list[PendingSend], UnitRows]:
        """Those of the sends of a unit that are to be stored, and the rows by which they are to be remembered.

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
        if len(rows.families) <= self._room and self._are_new(rows, table):
            self._room -= len(rows.families)
            return sends, rows
        return self._admit_each(sends, identities_of(keys, seeds))

    def without_repetitions(self, sends: list[PendingSend]) -> list[PendingSend]:
        """Those of some sends that repeat nothing which is stored or in flight; the others are or will be answered.

        Those that are left are remembered once `admit` has them.
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

    def _are_new(self, rows: UnitRows, table: RememberedSends) -> bool:
        """True if none of these sends was seen before, nor is there twice; they are seen now."""
        seen = self._seen
        self._recall(table.known([family for family in rows.families if family not in seen]))
        for family, members in zip(rows.families, rows.members, strict=True):
            before = seen.get(family, 0)
            if before & members:
                return False
            seen[family] = before | members
        return True

    def _recall(self, families: Iterable[int]) -> None:
        """See what is remembered of families that were not seen."""
        for family in families:
            self._seen[family] = self._table.members(family)

    def _admit_each(
        self, sends: Sequence[PendingSend], identities: Sequence[int]
    ) -> tuple[list[PendingSend], UnitRows]:
        """As `admit`, for sends among which there may be repetitions."""
        self._index_applied()
        kept: list[PendingSend] = []
        remembered: list[int] = []
        in_flight = self._in_flight()
        room = self._room
        for send, identity in zip(sends, identities, strict=True):
            if self._is_repetition(send, identity, in_flight):
                continue
            kept.append(send)
            if identity and room <= 0:
                self._counters.idempotent_overflow += 1
                remembered.append(0)
            else:
                remembered.append(identity)
                if identity:
                    room -= 1  # or it joins a row: then there is some more
                    family = identity >> MEMBER_BITS
                    in_flight[family] = in_flight.get(family, 0) | identity & MEMBERS
        if not kept:
            return kept, NO_ROWS
        rows = rows_of(remembered, _offsets(kept))
        self._recall([family for family in rows.families if family not in self._seen])
        _add(self._seen, rows)
        self._room -= len(rows.families)
        return kept, rows

    def _is_repetition(self, send: PendingSend, identity: int, in_flight: Mapping[int, int]) -> bool:
        """Whether a send repeats another one, or may: it is or will be answered then."""
        family, member = identity >> MEMBER_BITS, identity & MEMBERS
        if in_flight.get(family, 0) & member:
            self._hold(send[0])
            return True
        found = [row for row in self._table.find(family) if row.members & member] if identity else []
        try:
            return bool(found) and self._is_stored(found, send)
        except (LogError, OSError) as error:  # what may be the first one cannot be read here at present
            self._fail(send[0], error)
            return True

    def _in_flight(self) -> dict[int, int]:
        """The members of families that were proposed and are not applied."""
        found: dict[int, int] = {}
        for _, rows in self._staged:
            _add(found, rows)
        return found

    def _hold_opted_in(self, sends: Sequence[PendingSend], seeds: Sequence[int]) -> list[PendingSend]:
        """Look at sends again while not all rows are indexed, as after a change of leadership; returns the others."""
        for send in compress(sends, seeds):
            self._hold(send[0])
        return [send for send, seed in zip(sends, seeds, strict=True) if not seed]

    def _hold(self, request: Request) -> None:
        """Look at a send again while it has to wait, for a repetition until the first one has its outcome."""
        self._counters.idempotent_waits += 1
        self._env.call_later(WAIT_S, partial(self._look_again, request))

    def _look_again(self, request: Request) -> None:
        if self._closed:
            return
        if self._env.now() - request.received < self._timeout_s:
            self._requests.resume(request, None)
        else:
            why = f"the same message has waited for a majority for {self._timeout_ms} ms: it may be stored"
            self._fail(request, QuorumTimeout(why))

    # ---------------------------------------------------------------- comparing with what is stored

    def _is_stored(self, rows: Sequence[Row], send: PendingSend) -> bool:
        """Whether one of the stored sends is the same, which is then answered, or has to be read from the disk.

        `rows` are those of the same identity, newest first.
        """
        request, fields, target, _, messages, _, _, size, *_ = send
        segment_bytes, applied_position = self._log.segment_bytes, self._machine.applied_position
        kept_from = max(target.created_position, self._log.first_position)
        is_trimmed = False
        for members, position in rows[:MAX_CANDIDATES]:
            count = members.bit_count()
            left = min(applied_position, position - position % segment_bytes + segment_bytes) - position
            if position < kept_from or size > left:
                is_trimmed = is_trimmed or target.created_position <= position < self._log.first_position
                continue
            wanted = size if count == 1 else min(MAX_ROW_BYTES, left)
            if may_wait(messages):
                wanted = min(wanted + count * MAX_FACTS_BYTES, left)
            stored = self._fetched.get((position, wanted)) or self._log.read_nowait(position, wanted)
            if stored is None:
                self._requests.spawn(request, self._fetch(request, position, wanted))
                return True
            first = first_send(stored, count, fields, target, messages)
            if first is not None:
                self._answer(send, first)
                return True
        return is_trimmed and may_wait(messages) and self._is_moved(send)

    def _is_moved(self, send: PendingSend) -> bool:
        """As `_is_stored`, of a message that may wait: it was written again before the log was trimmed where it was."""
        request, fields, target, _, messages, unique_key, *_ = send
        moved = self._moved.get(unique_key)
        if moved is None:
            self._requests.spawn(request, self._find_moved(request, unique_key))
            return True
        for record in moved:
            first = first_send(record, 1, fields, target, messages)
            if first is not None:
                self._answer(send, first)
                return True
        return False

    async def _find_moved(self, request: Request, unique_key: bytes) -> None:
        """Look for records of messages that wait, then look at the request again."""
        moved: list[bytes] = []
        for topic in sorted(DUE_TOPICS):
            moved += [data for data, _ in await records_with_key(self._machine, topic, unique_key)]
        self._moved[unique_key] = moved
        self._requests.resume(request, None)
        self._env.call_later(KEEP_FETCHED_S, partial(self._forget_moved, unique_key))

    def _forget_moved(self, unique_key: bytes) -> None:
        self._moved.pop(unique_key, None)

    async def _fetch(self, request: Request, position: int, size: int) -> None:
        """Read a candidate from the disk, then look at the request again."""
        try:
            self._fetched[position, size] = await self._log.read(position, size)
        except TrimmedError:
            pass
        self._requests.resume(request, None)
        self._env.call_later(KEEP_FETCHED_S, partial(self._forget_fetched, position, size))

    def _forget_fetched(self, position: int, size: int) -> None:
        self._fetched.pop((position, size), None)

    def _answer(self, send: PendingSend, first: FirstSend) -> None:
        """Answer as the first send was answered."""
        request, _, target, _, _, unique_key, *_ = send
        self._counters.idempotent_repeats += 1
        if request.is_oneway:
            request.origin.settle()
            return
        handle = b""
        if first.due is not None:
            handle = self._due_messages.recall_handle(target.topic, first.due, unique_key)
        frame = send_response_frame(
            request.opaque,
            b",".join(first.ids),
            first.queue_id,
            first.queue_offset,
            unique_key,
            serialize_type=request.serialize_type,
            recall_handle=handle,
            with_trace_switch=request.is_from_go,
        )
        request.origin.answer_frame(frame)

    # ---------------------------------------------------------------- a unit goes into the log

    def command(self, rows: UnitRows) -> bytearray:
        """Room for the command that remembers sends, for `write_command` when their position is known.

        Empty if there is nothing to remember, or if not every member understands it: then they are stored only.
        """
        count = len(rows.families)
        if not count:
            return bytearray()
        membership = self._log.membership
        if membership is not self._understood_by:
            if not self._machine.understood_by_all(RememberSends):
                return bytearray()
            self._understood_by = membership
        return bytearray(COMMAND_HEADER_BYTES + ROW_BYTES * count)

    def remembering(self, sends: Sequence[PendingSend], rows: UnitRows) -> FixedRows | None:
        """The command for a unit with one record for each of these sends; None as in `command`.

        Their records may be larger than what was sent, as those of messages that wait until they are due.
        """
        room = self.command(rows)
        if not room:
            return None
        families, members, offsets = rows
        number_at = {offset: number for number, offset in enumerate(_offsets(sends))}
        numbers = [number_at[offset] for offset in offsets]

        def write(payload: memoryview, positions: Sequence[int | None]) -> None:
            invariant(None not in positions, "the topic where messages wait is there when they are stored")
            stand = cast(Sequence[int], positions)
            first = stand[0]
            there = UnitRows(families, members, [stand[number] - first for number in numbers])
            write_command(room, there, first)
            payload[:] = room[COMMAND_HEADER_BYTES:]
            self.staged(first, there)

        return FixedRows(REMEMBER_SENDS, len(room) - COMMAND_HEADER_BYTES, write)

    def staged(self, position: int, rows: UnitRows) -> None:
        """A unit whose first record is to stand at `position` was proposed."""
        self._staged.append((position, rows))
        self._not_indexed += len(rows.families)

    def _on_refused(self, position: int) -> None:
        """The disk has no space for what was to stand at `position` and behind it.

        While that counted as in flight, who tried again as told would wait for it, and be told that it may be stored.
        """
        while self._staged and self._staged[-1][0] >= position:
            self._staged.pop()

    def applied(self) -> None:
        """A unit was applied and answered."""
        are_many = self._not_indexed > MAX_NOT_INDEXED or len(self._seen) > self._seen_limit
        if are_many and not self._tidies:
            self._tidies = True
            self._env.call_soon(self._tidy)

    def _tidy(self) -> None:
        self._tidies = False
        if self._is_indexed and not self._closed:
            self._index_applied()
            if len(self._seen) > self._seen_limit:
                self._see_only_what_is_in_flight()

    def _see_only_what_is_in_flight(self) -> None:
        in_flight = self._in_flight()
        self._seen = {}
        self._recall(in_flight)
        for family, members in in_flight.items():
            self._seen[family] |= members
        self._seen_limit = len(in_flight) + MAX_SEEN

    def _index_applied(self) -> None:
        """What is applied is known to the state, where it is indexed now."""
        staged, applied_position = self._staged, self._machine.applied_position
        while staged and staged[0][0] < applied_position:
            staged.popleft()
        table = self._table
        while not table.index(ROWS_PER_SLICE):
            pass  # those that have expired since are the first to be indexed
        self._not_indexed = sum(len(rows.families) for _, rows in staged)
        self._room = table.max_rows - len(table) - self._not_indexed

    def _on_members(self) -> None:
        """A member understands other commands than before."""
        self._understood_by = None

    def _on_leadership(self, leadership: Leadership) -> None:
        """Another leader knows what is in flight; a handover that fails changes nothing."""
        self._understood_by = None
        if not leadership.is_leader or (leadership.ready and leadership.term != self._term):
            self._term = leadership.term if leadership.is_leader else 0
            self._seen.clear()
            self._staged.clear()
            self._not_indexed = self._room = 0
            self._is_indexed = False
            self._index_all(self._term)

    def _index_all(self, term: int) -> None:
        """Have what earlier leaders remembered indexed, a slice at a time."""
        if term and term == self._term and not self._closed and not self._index_some():
            self._env.call_soon(partial(self._index_all, term))

    def _index_some(self) -> bool:
        """Index a slice of what is remembered; whether all of it is indexed."""
        self._is_indexed = self._table.index(ROWS_PER_SLICE)
        return self._is_indexed


@lru_cache(maxsize=1024)
def _command(count: int) -> Struct:
    """A command of so many rows (`dledger.format.iter_commands`, `RememberSends`)."""
    return Struct(f">HI{count}I{count}H{count}Q")


def write_command(command: bytearray, rows: UnitRows, position: int) -> None:
    """Write a command into its room; the unit's first record stands at `position`."""
    families, members, offsets = rows
    positions = [position + offset for offset in offsets]
    count = len(families)
    _command(count).pack_into(command, 0, REMEMBER_SENDS, ROW_BYTES * count, *families, *members, *positions)


def _offsets(sends: Sequence[PendingSend]) -> list[int]:
    """Where in a unit each send begins, and where the last one ends."""
    return list(accumulate(map(_SIZE, sends), initial=0))


def _add(seen: dict[int, int], rows: UnitRows) -> None:
    """Add the members of a unit to those of their families."""
    for family, members in zip(rows.families, rows.members, strict=True):
        seen[family] = seen.get(family, 0) | members
