"""Sends that may be repeated: the second one gets the answer of the first, and nothing is stored again.

Who sends opts in, by ext field `idempotent` = `true` or by the topic's attribute of that name. A send repeats another
one if both have the same topic, producer group, unique key (`UNIQ_KEY`) and `reconsumeTimes`, *and* the same body,
flags and properties; a batch as a whole, with the same messages in the same order. Everything else is stored. Topics
that the broker itself writes to (retry, dead letter, system) are left out, and so are messages without a unique key.

What is stored is found by the replicated state (`state.remembered`), and then compared byte by byte. What is in flight
is known to this leader only: a repetition waits for its outcome, and is looked at again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import lru_cache, partial
from itertools import accumulate, compress, islice
from operator import itemgetter
from struct import Struct
from typing import Final, Protocol

from dledger.environment import Environment
from dledger.errors import LogError, TrimmedError
from dledger.format import COMMAND_HEADER_BYTES
from dledger.statemachine import Leadership
from dledger.types import Membership
from dledger_broker.config import BrokerConfig
from dledger_broker.machine import BrokerMachine
from dledger_broker.metrics import BrokerCounters
from dledger_broker.processors.record_tails import MessageParts
from dledger_broker.processors.send_unit import PendingSend
from dledger_broker.server.request import Request
from dledger_broker.state.commands import REMEMBER_SENDS, RememberSends
from dledger_broker.state.rows import ROW_BYTES
from dledger_remoting.checksum import crc32
from dledger_remoting.errors import QuorumTimeout
from dledger_remoting.hotpath import SendV2Fields, send_response_frame
from dledger_remoting.properties import UNIQUE_KEY
from dledger_remoting.record import KEPT_SYS_FLAGS, RECORD_HEAD, RECORD_HEAD_BYTES

WAIT_S: Final = 0.01
"""How often a repetition looks whether the first one has its outcome."""
KEEP_FETCHED_S: Final = 0.1
"""How long a stored send that was read from the disk stays at hand: the next candidate of the same identity may have to
be read, too, and a file system that cannot tell what is in memory has all of them read each time."""
MAX_CANDIDATES: Final = 64
"""Stored sends of one identity with which a send is compared, the newest ones."""
MAX_APPLIED: Final = 2_048
"""Sends that may count as in flight although they are applied: they are indexed together, when others were answered."""
MAX_IN_FLIGHT: Final = 8 * MAX_APPLIED
"""With more of them there are looks before every unit for those that are applied."""
ROWS_PER_SLICE: Final = 4_096
"""Remembered sends indexed at a time, in half a millisecond, and in some more as long as the index meets new memory."""

_SIZE: Final = itemgetter(7)
_IDENTITY: Final = itemgetter(8)
"""Of a `PendingSend`."""
_UNIQUE_KEY_MARK: Final = UNIQUE_KEY.encode() + b"\x01"


class StoredLog(Protocol):
    """What comparing needs of `dledger.node.Node`."""

    @property
    def membership(self) -> Membership:
        """The group's members."""

    @property
    def segment_bytes(self) -> int:
        """The size of a segment."""

    @property
    def first_position(self) -> int:
        """The first kept position."""

    def read_nowait(self, position: int, size: int) -> bytes | None:
        """Bytes from the page cache, or None."""

    def read(self, position: int, size: int) -> Awaitable[bytes]:
        """Bytes from the disk."""


class IdempotentSends:
    """Tells repetitions from other sends. `resume(request, None)` handles a request again; `spawn` runs a task for one;
    `fail` answers one with an error.
    """

    def __init__(
        self,
        machine: BrokerMachine,
        log: StoredLog,
        env: Environment,
        config: BrokerConfig,
        counters: BrokerCounters,
        *,
        resume: Callable[[Request, Exception | None], None],
        spawn: Callable[[Request, Coroutine[None, None, None]], None],
        fail: Callable[[Request, Exception], None],
    ) -> None:
        self._machine = machine
        self._log = log
        self._env = env
        self._timeout_s = config.quorum_timeout_ms / 1000
        self._timeout_ms = config.quorum_timeout_ms
        self._counters = counters
        self._resume = resume
        self._spawn = spawn
        self._fail = fail
        self._in_flight: set[int] = set()
        self._staged: deque[tuple[int, Sequence[int]]] = deque()
        self._fetched: dict[tuple[int, int], bytes] = {}
        """Stored sends that were read from the disk, by their position and how much of it was read."""
        self._room = 0
        self._understood_by: Membership | None = None
        self._term = 0
        self._is_indexed = False
        self._tidies = False
        self._closed = False
        machine.on_leadership_changed.append(self._on_leadership)
        machine.on_features_changed.append(self._on_features)

    def close(self) -> None:
        """Look again at nothing that waits."""
        self._closed = True

    # ---------------------------------------------------------------- a send comes

    def admit(self, sends: list[PendingSend]) -> tuple[list[PendingSend], list[int]]:
        """Those of the sends of a unit that are to be stored, and the numbers under which they are to be remembered, 0
        for those that are not; none at all if nothing is remembered.

        The others are repetitions, and are or will be answered.
        """
        table = self._machine.state.remembered
        if not table.window_ms:
            return sends, []
        identities = self._identities(sends)
        if not self._is_indexed and not self._index_some():
            return self._hold_opted_in(sends, identities), []
        opted_in = [identity for identity in identities if identity] if 0 in identities else identities
        if len(self._in_flight) > MAX_IN_FLIGHT:
            self._forget_applied()
        in_flight = self._in_flight
        expected = len(in_flight) + len(opted_in)
        in_flight.update(opted_in)
        if (
            len(in_flight) == expected <= self._room  # none of them was in flight, and none is there twice
            and not table.known(opted_in)
        ):
            return sends, identities
        self._forget_applied()  # and what this unit has added
        return self._admit_each(sends, identities, set(table.known(opted_in)))

    def _identities(self, sends: Sequence[PendingSend]) -> list[int]:
        """For each send the number under which it is remembered, or 0: it is not opted in, or came without a unique
        key.
        """
        return list(map(_IDENTITY, sends))

    def _admit_each(
        self, sends: Sequence[PendingSend], identities: Sequence[int], known: set[int]
    ) -> tuple[list[PendingSend], list[int]]:
        """As `admit`, for sends among which there may be repetitions, of what is in flight or of stored ones with a
        `known` identity.
        """
        kept: list[PendingSend] = []
        remembered: list[int] = []
        in_flight = self._in_flight
        for send, identity in zip(sends, identities, strict=True):
            if identity in in_flight:
                self._hold(send[0])
                continue
            if identity in known:
                try:
                    if self._is_stored(self._machine.state.remembered.find(identity), send):
                        continue
                except (LogError, OSError) as error:  # what may be the first one cannot be read here at present
                    self._fail(send[0], error)
                    continue
            kept.append(send)
            if identity and len(in_flight) >= self._room:
                self._counters.idempotent_overflow += 1
                remembered.append(0)
            else:
                remembered.append(identity)
                if identity:
                    in_flight.add(identity)
        return kept, remembered

    def _hold_opted_in(self, sends: Sequence[PendingSend], identities: Sequence[int]) -> list[PendingSend]:
        """Look at sends again while not all rows are indexed, as after a change of leadership; returns the others."""
        for send in compress(sends, identities):
            self._hold(send[0])
        return [send for send, identity in zip(sends, identities, strict=True) if not identity]

    def _hold(self, request: Request) -> None:
        """Look at a send again while it has to wait, for a repetition until the first one has its outcome."""
        self._counters.idempotent_waits += 1
        self._env.call_later(WAIT_S, partial(self._look_again, request))

    def _look_again(self, request: Request) -> None:
        if self._closed:
            return
        if self._env.now() - request.received < self._timeout_s:
            self._resume(request, None)
        else:
            why = f"the same message has waited for a majority for {self._timeout_ms} ms: it may be stored"
            self._fail(request, QuorumTimeout(why))

    # ---------------------------------------------------------------- comparing with what is stored

    def _is_stored(
        self,
        candidates: Sequence[int],
        send: PendingSend,
    ) -> bool:
        """Whether one of the stored sends is the same, which is then answered, or has to be read from the disk.

        `candidates` are the positions of stored sends of the same identity, newest first.
        """
        request, fields, target, _, messages, _, _, size, *_ = send
        kept_from = max(target.created_position, self._log.first_position)
        for position in candidates[:MAX_CANDIDATES]:
            end = position + size
            if (
                position < kept_from
                or end > self._machine.applied_position
                or position // self._log.segment_bytes != (end - 1) // self._log.segment_bytes
            ):
                continue
            stored = self._fetched.get((position, size)) or self._log.read_nowait(position, size)
            if stored is None:
                self._spawn(request, self._fetch(request, position, size))
                return True
            if _same(stored[:size], fields, messages):
                self._answer(request, stored, messages)
                return True
        return False

    async def _fetch(self, request: Request, position: int, size: int) -> None:
        """Read a candidate from the disk, then look at the request again."""
        try:
            self._fetched[position, size] = await self._log.read(position, size)
        except TrimmedError:
            pass
        self._resume(request, None)
        self._env.call_later(KEEP_FETCHED_S, partial(self._forget_fetched, position, size))

    def _forget_fetched(self, position: int, size: int) -> None:
        self._fetched.pop((position, size), None)

    def _answer(self, request: Request, stored: bytes, messages: Sequence[MessageParts]) -> None:
        """Answer as the first send was answered, which its records tell."""
        self._counters.idempotent_repeats += 1
        ids: list[bytes] = []
        at = 0
        for body, tail, _, _ in messages:
            ids.append((stored[at + 64 : at + 72] + stored[at + 28 : at + 36]).hex().upper().encode())
            at += RECORD_HEAD_BYTES + len(body) + len(tail)
        _, _, _, queue_id, _, queue_offset, *_ = RECORD_HEAD.unpack_from(stored)
        if request.is_oneway:
            request.origin.settle()
            return
        unique_key = b"" if len(messages) > 1 else _unique_key(messages[0][1])
        frame = send_response_frame(
            request.opaque, b",".join(ids), queue_id, queue_offset, unique_key, serialize_type=request.serialize_type
        )
        request.origin.answer_frame(frame)

    # ---------------------------------------------------------------- a unit goes into the log

    def command(self, identities: Sequence[int]) -> bytearray:
        """Room for the command that remembers sends, to be written by `complete` when their positions are known.

        Empty if there is nothing to remember, or if not every member understands it: then they are stored only.
        """
        count = len(identities) - identities.count(0)
        if not count:
            return bytearray()
        membership = self._log.membership
        if membership is not self._understood_by:
            if not self._machine.understood_by_all(RememberSends):
                self.refused(identities)
                return bytearray()
            self._understood_by = membership
        return bytearray(_command(count).size)

    def complete(
        self, command: bytearray, identities: Sequence[int], sends: Sequence[PendingSend], position: int
    ) -> None:
        """Write the command; the first of the sends stands at `position`."""
        positions: Iterable[int] = islice(accumulate(map(_SIZE, sends), initial=position), len(sends))
        count = (len(command) - COMMAND_HEADER_BYTES) // ROW_BYTES
        if count != len(identities):
            positions = compress(positions, identities)
            identities = [identity for identity in identities if identity]
        _command(count).pack_into(command, 0, REMEMBER_SENDS, ROW_BYTES * count, *identities, *positions)

    def staged(self, position: int, identities: Sequence[int]) -> None:
        """A unit whose first record is to stand at `position` was proposed."""
        self._staged.append((position, identities))

    def applied(self) -> None:
        """A unit was applied and answered."""
        if len(self._in_flight) > MAX_APPLIED and not self._tidies:
            self._tidies = True
            self._env.call_soon(self._tidy)

    def _tidy(self) -> None:
        self._tidies = False
        if self._is_indexed and not self._closed:
            self._forget_applied()

    def refused(self, identities: Iterable[int]) -> None:
        """These sends were not proposed."""
        self._in_flight.difference_update(identities)

    def _forget_applied(self) -> None:
        """What is applied is known to the state, where it is indexed now."""
        staged, applied_position = self._staged, self._machine.applied_position
        while staged and staged[0][0] < applied_position:
            staged.popleft()
        self._in_flight = set().union(*[identities for _, identities in staged])
        self._in_flight.discard(0)
        table = self._machine.state.remembered
        while not table.index(ROWS_PER_SLICE):
            pass  # those that have expired since are the first to be indexed
        self._room = table.max_rows - len(table)

    def _on_features(self) -> None:
        """A member understands other commands than before."""
        self._understood_by = None

    def _on_leadership(self, leadership: Leadership) -> None:
        """Another leader knows what is in flight; a handover that fails changes nothing."""
        self._understood_by = None
        if not leadership.is_leader or (leadership.ready and leadership.term != self._term):
            self._term = leadership.term if leadership.is_leader else 0
            self._in_flight.clear()
            self._staged.clear()
            self._is_indexed = False
            self._index_all(self._term)

    def _index_all(self, term: int) -> None:
        """Have what earlier leaders remembered indexed, a slice at a time."""
        if term and term == self._term and not self._closed and not self._index_some():
            self._env.call_soon(partial(self._index_all, term))

    def _index_some(self) -> bool:
        """Index a slice of what is remembered; whether all of it is indexed."""
        self._is_indexed = self._machine.state.remembered.index(ROWS_PER_SLICE)
        return self._is_indexed


@lru_cache(maxsize=1024)
def _command(count: int) -> Struct:
    """A command of so many rows (`dledger.format.iter_commands`, `state.commands.remembered_rows`)."""
    return Struct(f">HI{count}I{count}Q")


def identity_of(group: str, topic: str, messages: Sequence[MessageParts]) -> int:
    """The number under which a producer group's send to a topic is remembered: `identity_of_key` of its first message.

    Records do not show how many messages were sent as one batch: the same first message gets another number in a batch
    of another size.
    """
    return identity_of_key(_unique_key(messages[0][1]), identity_seed(group, topic, len(messages)))


def identity_of_key(unique_key: bytes, seed: int) -> int:
    """The number of a unique key.

    Producers count in the last characters of their keys. Keys that differ in the last one only get numbers that differ
    in the last bits only, which makes them neighbours in the index (`state.rows`): a look-up of all sends of a unit
    touches little memory. Sends that have a number in common by chance cost a comparison, one in a thousand of them at
    four million remembered ones.
    """
    return crc32(unique_key[:-1], seed) ^ unique_key[-1]


@lru_cache(maxsize=1024)
def identity_seed(group: str, topic: str, messages: int) -> int:
    """The checksum of a producer group, a topic and a number of messages: sends that differ in one of these are told
    apart without a comparison, and do not wait for one another.
    """
    return crc32(f"{group}\x01{topic}\x01{messages}".encode())


def _same(stored: bytes, fields: SendV2Fields, messages: Sequence[MessageParts]) -> bool:
    """Whether these records are the messages, but for queue, born time, store time and hosts."""
    at = 0
    for body, tail, flag, _ in messages:
        size = RECORD_HEAD_BYTES + len(body) + len(tail)
        found = RECORD_HEAD.unpack_from(stored, at)
        expected = (size, flag, fields.sys_flag & KEPT_SYS_FLAGS, fields.reconsume_times, len(body))
        if (found[0], found[4], found[7], found[12], found[14]) != expected:
            return False
        begin = at + RECORD_HEAD_BYTES
        if stored[begin : begin + len(body)] != body or stored[begin + len(body) : at + size] != tail:
            return False
        at += size
    return True


def _unique_key(tail: bytes) -> bytes:
    """The unique key in the properties at the end of a record."""
    start = tail.rfind(_UNIQUE_KEY_MARK) + len(_UNIQUE_KEY_MARK)
    end = tail.find(b"\x02", start)
    return tail[start:] if end < 0 else tail[start:end]
