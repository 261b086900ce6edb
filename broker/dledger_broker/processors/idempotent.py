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
from itertools import chain
from struct import pack_into
from typing import Final, Protocol

from dledger.environment import Environment
from dledger.errors import TrimmedError
from dledger.statemachine import Leadership
from dledger.types import Membership
from dledger_broker.config import BrokerConfig
from dledger_broker.machine import BrokerMachine
from dledger_broker.metrics import BrokerCounters
from dledger_broker.processors.record_tails import MessageParts
from dledger_broker.processors.send_targets import SendTarget
from dledger_broker.server.request import Request
from dledger_broker.state.commands import RememberSends, encode
from dledger_broker.state.remembered import ROW_BYTES
from dledger_broker.state.tables import QueueState
from dledger_remoting.checksum import crc32
from dledger_remoting.errors import QuorumTimeout
from dledger_remoting.hotpath import SendV2Fields, send_response_frame
from dledger_remoting.properties import UNIQUE_KEY
from dledger_remoting.record import KEPT_SYS_FLAGS, RECORD_HEAD, RECORD_HEAD_BYTES

WAIT_S: Final = 0.01
"""How often a repetition looks whether the first one has its outcome."""
MAX_CANDIDATES: Final = 8
"""Stored sends of one identity with which a send is compared, the newest ones."""

_UNIQUE_KEY_MARK: Final = UNIQUE_KEY + "\x01"
_UNIQUE_KEY_BYTES: Final = _UNIQUE_KEY_MARK.encode()


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
        self._resume = resume
        self._spawn = spawn
        self._fail = fail
        self._in_flight: set[int] = set()
        self._staged: deque[tuple[int, list[int]]] = deque()
        self._fetched: dict[int, bytes] = {}
        self._room = 0
        self._understood_by: Membership | None = None
        self._term = 0
        self._closed = False
        machine.on_leadership_changed.append(self._on_leadership)
        machine.on_features_changed.append(self._on_features)

    def close(self) -> None:
        """Look again at nothing that waits."""
        self._closed = True

    # ---------------------------------------------------------------- a send comes

    def admit(
        self,
        request: Request,
        fields: SendV2Fields,
        target: SendTarget,
        messages: Sequence[MessageParts],
        *,
        is_batch: bool,
    ) -> int | None:
        """The identity of a send that is to be stored and remembered; None if it is a repetition, and is or will be
        answered; 0 if it is only to be stored, because it has no unique key or its topic is not only clients'.
        """
        table = self._machine.state.remembered
        if not table.window_ms or not target.written_by_clients_only:
            return 0
        if is_batch:
            if not request.body.count(_UNIQUE_KEY_BYTES) >= len(messages) > 0:
                return 0
        elif _UNIQUE_KEY_MARK not in fields.properties:
            return 0
        identity = _identity(fields, messages, request.body)
        if identity in self._in_flight:
            self._forget_applied()
            if identity in self._in_flight:
                self._hold(request)
                return None
        candidates = table.find(identity)
        if candidates and self._is_stored(candidates, request, fields, target, messages):
            return None
        if len(self._in_flight) >= self._room and self._is_full():
            self._counters.idempotent_overflow += 1
            return 0
        self._in_flight.add(identity)
        return identity

    def _is_full(self) -> bool:
        """Whether as many sends are remembered, or about to be, as the limit allows."""
        self._forget_applied()
        return len(self._in_flight) >= self._room

    def _hold(self, request: Request) -> None:
        """Look at a repetition again while the first one has no outcome."""
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
        candidates: list[int],
        request: Request,
        fields: SendV2Fields,
        target: SendTarget,
        messages: Sequence[MessageParts],
    ) -> bool:
        """Whether one of the stored sends is the same, which is then answered, or has to be read from the disk."""
        size = sum(RECORD_HEAD_BYTES + len(body) + len(tail) for body, tail, _, _ in messages)
        kept_from = max(target.created_position, self._log.first_position)
        for position in reversed(candidates[-MAX_CANDIDATES:]):
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
            self._fetched.pop(position, None)
        self._resume(request, None)
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

    def without_deleted(self, identities: list[int], queues: Sequence[QueueState]) -> list[int]:
        """The identities of those sends of a unit, given by their queues, whose topics were not deleted meanwhile."""
        if not identities:
            return identities
        deleting = self._machine.proposals.topic_deleting
        self.refused(identities)
        kept = [
            identity
            for identity, queue in zip(identities, queues, strict=True)
            if not (queue.dropped or deleting(queue.topic))
        ]
        self._in_flight.update(kept)
        return kept

    def command(self, identities: Sequence[int]) -> bytearray:
        """The command that remembers sends, to be completed by `complete` when their positions are known.

        Empty if not every member understands it: then they are stored only.
        """
        membership = self._machine.log.membership
        if membership is not self._understood_by:
            if not self._machine.understood_by_all(RememberSends):
                self.refused(identities)
                return bytearray()
            self._understood_by = membership
        return bytearray(_command_of(len(identities)))

    def complete(self, command: bytearray, identities: Sequence[int], positions: Iterable[int]) -> None:
        """Write the rows, which are the last bytes of the command."""
        rows = chain.from_iterable(zip(identities, positions, strict=True))
        pack_into(f">{2 * len(identities)}Q", command, len(command) - ROW_BYTES * len(identities), *rows)

    def staged(self, position: int, identities: list[int]) -> None:
        """A unit whose first record is to stand at `position` was proposed."""
        self._forget_applied()
        self._in_flight.update(identities)
        self._staged.append((position, identities))

    def refused(self, identities: Sequence[int]) -> None:
        """These sends were not proposed."""
        self._in_flight.difference_update(identities)

    def _forget_applied(self) -> None:
        """What is applied is known to the state."""
        staged, applied_position = self._staged, self._machine.applied_position
        while staged and staged[0][0] < applied_position:
            self._in_flight.difference_update(staged.popleft()[1])
        table = self._machine.state.remembered
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


@lru_cache(maxsize=512)
def _command_of(count: int) -> bytes:
    """The command that remembers so many sends, its rows all zero."""
    return encode(RememberSends(bytes(ROW_BYTES * count)))


def _identity(fields: SendV2Fields, messages: Sequence[MessageParts], body: bytes) -> int:
    """The number under which a send is remembered, never 0.

    One checksum of everything but the body, and one that goes on with the body. Sends that have a number in common by
    chance cost a comparison, one in a thousand of them at four million remembered ones. The first message's tail has
    topic, unique key and properties.
    """
    _, tail, flag, _ = messages[0]
    first = crc32(tail, _seed(fields.producer_group, fields.reconsume_times, flag, len(messages)))
    return first << 32 | crc32(body, first) or 1


@lru_cache(maxsize=1024)
def _seed(group: str, reconsume_times: int, flag: int, messages: int) -> int:
    """The checksum of what is mostly the same for all sends of a producer."""
    return crc32(b"%b\0%d,%d,%d" % (group.encode(), reconsume_times, flag, messages))


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
    start = tail.rfind(_UNIQUE_KEY_BYTES) + len(_UNIQUE_KEY_BYTES)
    end = tail.find(b"\x02", start)
    return tail[start:] if end < 0 else tail[start:end]
