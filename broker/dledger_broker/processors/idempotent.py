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
from itertools import accumulate, compress
from struct import Struct
from typing import Final, NamedTuple, Protocol

from dledger.environment import Environment
from dledger.errors import LogError, TrimmedError
from dledger.statemachine import Leadership
from dledger.types import Membership
from dledger_broker.config import BrokerConfig
from dledger_broker.machine import BrokerMachine
from dledger_broker.metrics import BrokerCounters
from dledger_broker.processors.record_tails import MessageParts, cluster_property
from dledger_broker.processors.send_targets import SendTarget
from dledger_broker.processors.send_unit import PendingSend
from dledger_broker.server.request import Request
from dledger_broker.state.commands import RememberSends, encode
from dledger_broker.state.rows import POSITION_BYTES
from dledger_remoting.checksum import crc32
from dledger_remoting.errors import QuorumTimeout
from dledger_remoting.hotpath import SendV2Fields, send_response_frame
from dledger_remoting.properties import UNIQUE_KEY
from dledger_remoting.record import KEPT_SYS_FLAGS, RECORD_HEAD, RECORD_HEAD_BYTES

WAIT_S: Final = 0.01
"""How often a repetition looks whether the first one has its outcome."""
MAX_CANDIDATES: Final = 64
"""Stored sends of one identity with which a send is compared, the newest ones."""
MAX_APPLIED: Final = 1_024
"""Sends that may count as in flight although they are applied: they are indexed together."""
ROWS_PER_SLICE: Final = 4_096
"""Remembered sends indexed at a time, in half a millisecond, and in some more as long as the index meets new memory."""

_UNIQUE_KEY_MARK: Final = UNIQUE_KEY.encode() + b"\x01"


class ToRemember(NamedTuple):
    """What the entry of a unit is to remember: the identities of some of its sends.

    `of_all` has those of all its sends, 0 for the others, or is None if there are no others.
    """

    identities: list[int]
    of_all: list[int] | None


NOTHING: Final = ToRemember([], None)


class StoredLog(Protocol):
    """What comparing needs of `dledger.node.Node`."""

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
        self._end_with_own_key = cluster_property(config.cluster)
        self._resume = resume
        self._spawn = spawn
        self._fail = fail
        self._in_flight: set[int] = set()
        self._staged: deque[tuple[int, list[int]]] = deque()
        self._fetched: dict[int, bytes] = {}
        self._room = 0
        self._understood_by: Membership | None = None
        self._term = 0
        self._is_indexed = False
        self._closed = False
        machine.on_leadership_changed.append(self._on_leadership)
        machine.on_features_changed.append(self._on_features)

    def close(self) -> None:
        """Look again at nothing that waits."""
        self._closed = True

    # ---------------------------------------------------------------- a send comes

    def admit(self, sends: list[PendingSend]) -> tuple[list[PendingSend], ToRemember]:
        """Those of the sends of a unit that are to be stored, and what is to be remembered of them.

        The others are repetitions, and are or will be answered.
        """
        table = self._machine.state.remembered
        if not table.window_ms:
            return sends, NOTHING
        identities = self._identities(sends)
        if not self._is_indexed and not self._index_some():
            return self._hold_opted_in(sends, identities), NOTHING
        remembered = _to_remember(identities)
        in_flight = self._in_flight
        if len(in_flight) > MAX_APPLIED:
            self._forget_applied()
        expected = len(in_flight) + len(remembered.identities)
        in_flight.update(remembered.identities)
        if (
            len(in_flight) == expected <= self._room  # none of them was in flight, and none is there twice
            and not table.known(remembered.identities)
        ):
            return sends, remembered
        self._forget_applied()
        self._in_flight = set().union(*(staged for _, staged in self._staged))
        return self._admit_each(sends, identities, set(table.known(remembered.identities)))

    def _identities(self, sends: Sequence[PendingSend]) -> list[int]:
        """For each send the number under which it is remembered, or 0: not opted in, without a unique key of its own,
        or to a topic that is not only clients'.

        It is a checksum of the producer group, the number of messages and the first one's tail, which has topic, unique
        key and properties. Sends that have a number in common by chance cost a comparison, one in a thousand of them at
        four million remembered ones.
        """
        end, identities = self._end_with_own_key, []
        target: SendTarget | None = None
        by_topic = by_clients = False
        group, seed = "", _seed("", 1)
        for _, fields, its_target, _, messages, _, sizes, _ in sends:
            if its_target is not target:
                target = its_target
                by_topic, by_clients = target.idempotent, target.written_by_clients_only
            if not by_clients or not (by_topic or fields.idempotent):
                identities.append(0)
            elif sizes is None:  # no batch
                if fields.producer_group != group:
                    group = fields.producer_group
                    seed = _seed(group, 1)
                tail = messages[0][1]
                identities.append(crc32(tail, seed) if tail.endswith(end) else 0)
            elif all(tail.endswith(end) for _, tail, _, _ in messages):
                identities.append(crc32(messages[0][1], _seed(fields.producer_group, len(messages))))
            else:
                identities.append(0)
        return identities

    def _admit_each(
        self, sends: Sequence[PendingSend], identities: Sequence[int], known: set[int]
    ) -> tuple[list[PendingSend], ToRemember]:
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
        return kept, _to_remember(remembered)

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
        request, fields, target, _, messages, _, _, size = send
        kept_from = max(target.created_position, self._log.first_position)
        for position in candidates[:MAX_CANDIDATES]:
            end = position + size
            if (
                position < kept_from
                or end > self._machine.applied_position
                or position // self._log.segment_bytes != (end - 1) // self._log.segment_bytes
            ):
                continue
            stored = self._fetched.pop(position, None) or self._log.read_nowait(position, size)
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
            self._fetched[position] = await self._log.read(position, size)
        except TrimmedError:
            pass
        self._resume(request, None)
        self._env.call_later(WAIT_S, partial(self._forget_fetched, position))

    def _forget_fetched(self, position: int) -> None:
        self._fetched.pop(position, None)

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

    def command(self, remembered: ToRemember) -> bytearray:
        """The command that remembers sends, to be completed by `complete` when their positions are known.

        Empty if there is nothing to remember, or if not every member understands it: then they are stored only.
        """
        if not remembered.identities:
            return bytearray()
        membership = self._machine.log.membership
        if membership is not self._understood_by:
            if not self._machine.understood_by_all(RememberSends):
                self.refused(remembered)
                return bytearray()
            self._understood_by = membership
        count = len(remembered.identities)
        identities = _numbers("I", count).pack(*remembered.identities)
        return bytearray(encode(RememberSends(identities, bytes(POSITION_BYTES * count))))

    def complete(self, command: bytearray, remembered: ToRemember, sends: Sequence[PendingSend], position: int) -> None:
        """Write the positions, which are the last bytes of the command; the first of the sends stands at `position`."""
        positions: Iterable[int] = accumulate([send[7] for send in sends[:-1]], initial=position)
        if remembered.of_all is not None:
            positions = compress(positions, remembered.of_all)
        count = len(remembered.identities)
        _numbers("Q", count).pack_into(command, len(command) - POSITION_BYTES * count, *positions)

    def staged(self, position: int, remembered: ToRemember) -> None:
        """A unit whose first record is to stand at `position` was proposed."""
        self._staged.append((position, remembered.identities))

    def refused(self, remembered: ToRemember) -> None:
        """These sends were not proposed."""
        self._in_flight.difference_update(remembered.identities)

    def _forget_applied(self) -> None:
        """What is applied is known to the state, where it is indexed now."""
        staged, applied_position = self._staged, self._machine.applied_position
        while staged and staged[0][0] < applied_position:
            self._in_flight.difference_update(staged.popleft()[1])
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


def _to_remember(identities: list[int]) -> ToRemember:
    """What is to be remembered of sends with these identities."""
    if 0 in identities:
        return ToRemember([identity for identity in identities if identity], identities)
    return ToRemember(identities, None)


@lru_cache(maxsize=1024)
def _numbers(kind: str, count: int) -> Struct:
    return Struct(f">{count}{kind}")


@lru_cache(maxsize=1024)
def _seed(group: str, messages: int) -> int:
    """The checksum with which that of a send begins. Records do not show how many messages were sent as one batch: the
    same first message gets another number in a batch of another size.
    """
    return crc32(b"%d" % messages, crc32(group.encode()))


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
