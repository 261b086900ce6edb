"""Sends: codes 10, 310 and 320.

All sends of one read from a socket, and of requests that other nodes passed on in the same turn, are one unit: checked
and collected by `add`, encoded when `flush` stages them, answered when they are applied. Nothing is done per message
that can be done per unit: no task, no future, no lock, no write.

Checks and codes are RocketMQ's `SendMessageProcessor`'s, in its order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import randrange
from struct import Struct
from typing import Final, Protocol, TypeAlias

from dledger.environment import Cancellable, Environment
from dledger.errors import LogError
from dledger_broker.config import BrokerConfig
from dledger_broker.machine import BrokerMachine
from dledger_broker.metrics import BrokerCounters
from dledger_broker.processors.send_targets import SendTarget, SendTargets
from dledger_broker.server.request import Request
from dledger_broker.state.contexts import StagedRecord
from dledger_broker.state.tables import QueueState
from dledger_broker.views.dispatch import tag_code_of
from dledger_remoting.batch import decode_batch
from dledger_remoting.checksum import crc32
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import (
    InvalidParameter,
    MessageIllegal,
    NoPermission,
    OutcomeUnknown,
    QuorumTimeout,
    TopicNotExist,
)
from dledger_remoting.headers import SendMessageHeader
from dledger_remoting.hosts import HostAddress, pack_host
from dledger_remoting.hotpath import SendV2Fields, send_response_frame
from dledger_remoting.ids import UniqueKeyGenerator, offset_message_id_prefix
from dledger_remoting.properties import (
    CLUSTER,
    DELAY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    UNIQUE_KEY,
    find_property,
)
from dledger_remoting.record import (
    MAX_PROPERTIES_BYTES,
    RECORD_HEAD,
    RECORD_HEAD_BYTES,
    SYS_COMPRESSED,
    SYS_MULTI_TAGS,
    SYS_TRANSACTION_MASK,
)

MAX_UNIT_BYTES: Final = 512 << 10
"""Sends of one read are staged at this size, so that a unit fits well into an entry."""
MAX_KNOWN_TAGS: Final = 4_096
SWEEP_S: Final = 0.1
"""A write that waits too long for a majority is noticed at most so late."""

_UNIQUE_KEY: Final = UNIQUE_KEY.encode()
_UNIQUE_KEY_MARK: Final = _UNIQUE_KEY + b"\x01"
_TAGS: Final = TAGS.encode()
_TAGS_MARK: Final = _TAGS + b"\x01"
_KEPT_SYS_FLAGS: Final = SYS_COMPRESSED | SYS_MULTI_TAGS | 0x700
_DELAY_MARK: Final = b"DEL"
"""Part of the name of every property that asks for a delay."""
_DELAYS: Final = (DELAY.encode(), TIMER_DELAY_SEC.encode(), TIMER_DELAY_MS.encode(), TIMER_DELIVER_MS.encode())
_pack_head: Final = RECORD_HEAD.pack
_pack_length: Final = Struct(">H").pack

_Message: TypeAlias = tuple[bytes, bytes, int, int]
"""Body; what a record holds behind it: topic and properties, with their lengths; the user's flag; tag code."""

_Pending: TypeAlias = tuple[Request, SendV2Fields, SendTarget, QueueState, int, list[_Message], bytes, bool]
"""One request's messages, checked: request, its fields, where they go (topic, queue, queue id), the messages, the
unique key of a single one, whether it is a batch."""


class Staging(Protocol):
    """`dledger.node.Node.stage`."""

    def stage(
        self, size: int, fill: Callable[[int], Sequence[bytes]], *, commands: bytes = b"", context: object = None
    ) -> int:
        """Propose a unit."""


class SendUnit:
    """The context of a staged unit (`StagedContext`): the requests in it, and its records in log order."""

    __slots__ = ("_pending", "_processor", "deadline", "records", "settled")

    def __init__(self, processor: SendProcessor, pending: list[_Pending], deadline: float) -> None:
        self._processor = processor
        self._pending = pending
        self.deadline = deadline
        self.records: list[StagedRecord] = []
        self.settled = False

    def applied(self) -> None:
        """See `StagedContext`: answer every request of the unit."""
        if self.settled:
            return
        self.settled = True
        prefix = self._processor.message_id_prefix
        place = 0
        for request, _, _, _, queue_id, messages, unique_key, is_batch in self._pending:
            _, queue_offset, position, _, _ = self.records[place]
            if request.flag & 2:
                request.origin.settle()
            else:
                message_id = b"%b%016X" % (prefix, position)
                if is_batch:
                    ids = [b"%b%016X" % (prefix, record[2]) for record in self.records[place : place + len(messages)]]
                    message_id = b",".join(ids)
                request.origin.answer_frame(
                    send_response_frame(
                        request.opaque,
                        message_id,
                        queue_id,
                        queue_offset,
                        unique_key,
                        serialize_type=request.serialize_type,
                    )
                )
            place += len(messages)
        self._processor.counters.messages_in += place
        self._pending = []
        self._processor.forget_settled()

    def dropped(self) -> None:
        """See `StagedContext`."""
        self.fail(OutcomeUnknown("leadership was lost before a majority had the message: it may be stored"))

    def fail(self, error: OutcomeUnknown) -> None:
        """Answer every request of the unit with an error, unless it was answered."""
        if not self.settled:
            self.settled = True
            for pending in self._pending:
                self._processor.fail(pending[0], error)


class SendProcessor:
    """Stores messages. `fail(request, error)` answers a request that was not stored, or passes it on."""

    def __init__(
        self,
        machine: BrokerMachine,
        node: Staging,
        env: Environment,
        limits: BrokerConfig,
        counters: BrokerCounters,
        targets: SendTargets,
        store_host: HostAddress,
        unique_keys: UniqueKeyGenerator,
        fail: Callable[[Request, Exception], None],
    ) -> None:
        self._machine = machine
        self._node = node
        self._env = env
        self._limits = limits
        self._targets = targets
        self._unique_keys = unique_keys
        self._store_host = pack_host(store_host)
        self._cluster = f"{CLUSTER}\x01{limits.cluster}\x02".encode()
        self._cluster_after_open_end = b"\x02" + self._cluster
        self._pending: list[_Pending] = []
        self._pending_bytes = 0
        self._flush_scheduled = False
        self._flying: deque[SendUnit] = deque()
        self._sweep: Cancellable | None = None
        self._last_ms = 0
        self._tag_codes: dict[bytes, int] = {}
        self.counters = counters
        self.fail = fail
        self.message_id_prefix = offset_message_id_prefix(store_host)

    def close(self) -> None:
        """Answer what is under way: this node will not learn its outcome."""
        for unit in self._flying:
            unit.fail(OutcomeUnknown("this node is stopping: the message may be stored"))
        self._flying.clear()
        if self._sweep is not None:
            self._sweep.cancel()

    def handle(self, request: Request) -> None:
        """A send by the general path, of any serializer and either form of field names."""
        header = SendMessageHeader.decode(request.ext)
        fields = SendV2Fields(
            header.producer_group,
            header.topic,
            header.default_topic,
            header.default_topic_queue_nums,
            header.queue_id,
            header.sys_flag,
            header.born_timestamp,
            header.flag,
            header.properties or "",
            header.reconsume_times or 0,
            bool(header.unit_mode),
            header.max_reconsume_times,
            bool(header.batch),
        )
        self.add(request, fields)

    def add(self, request: Request, fields: SendV2Fields) -> None:
        """Check a send and take it into the unit of this turn. Raises `RemotingError` with RocketMQ's code."""
        target = self._targets.get(request, fields)
        if target is None:
            return
        queue_id = fields.queue_id
        if queue_id < 0 or target.redirected:
            queue_id = randrange(target.write_queues)
        elif queue_id >= target.queues:
            raise InvalidParameter(
                f"queueId {queue_id} is outside 0..{target.queues - 1} of topic {target.topic}: refresh the route"
            )
        body = request.body
        if len(body) > self._limits.max_message_bytes:
            raise MessageIllegal(
                f"the message body has {len(body)} bytes, the limit is {self._limits.max_message_bytes}"
            )
        if fields.sys_flag & SYS_TRANSACTION_MASK:
            raise NoPermission("this broker does not take transactional messages: send without a transaction")
        unique_key = b""
        is_batch = fields.batch or request.code == RequestCode.SEND_BATCH_MESSAGE
        if is_batch:
            messages = self._batch(target, body)
        else:
            properties = fields.properties.encode()
            tail, unique_key = self._complete(properties, target)
            messages = [(body, tail, fields.user_flag, self._tag_code(properties))]
        size = len(messages) * RECORD_HEAD_BYTES
        for message in messages:
            size += len(message[0]) + len(message[1])
        if self._pending_bytes + size > MAX_UNIT_BYTES:
            self.flush()
        self._pending.append(
            (request, fields, target, target.queue(queue_id), queue_id, messages, unique_key, is_batch)
        )
        self._pending_bytes += size

    def flush_later(self) -> None:
        """Stage what was added once all connections that have something to read were read."""
        if self._pending and not self._flush_scheduled:
            self._flush_scheduled = True
            self._env.call_soon(self._on_turn_end)

    def _on_turn_end(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def flush(self) -> None:
        """Stage what was added. Requests that the log refuses are answered, or passed on."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        size, self._pending_bytes = self._pending_bytes, 0
        deleting = self._machine.proposals.topic_deleting
        if any(entry[3].dropped or deleting(entry[3].topic) for entry in pending):
            pending = self._without_deleted(pending)
            size = sum(RECORD_HEAD_BYTES + len(body) + len(tail) for entry in pending for body, tail, _, _ in entry[5])
            if not pending:
                return
        unit = SendUnit(self, pending, self._env.now() + self._limits.quorum_timeout_ms / 1000)

        def fill(position: int) -> list[bytes]:
            return self._encode(pending, position, unit.records)

        try:
            self._node.stage(size, fill, context=unit)
        except LogError as error:
            for entry in pending:
                self.fail(entry[0], error)
            return
        self.counters.bytes_in += size
        self._flying.append(unit)
        if self._sweep is None:
            self._sweep = self._env.call_later(SWEEP_S, self._on_sweep)

    def _without_deleted(self, pending: list[_Pending]) -> list[_Pending]:
        """What remains once the sends whose topic was deleted since they were added look for a topic again.

        Staged, they would be lost, or be taken for records of a topic that is created anew before them in the log.
        """
        deleting = self._machine.proposals.topic_deleting
        kept: list[_Pending] = []
        for entry in pending:
            name = entry[3].topic
            if entry[3].dropped or deleting(name):
                self.fail(entry[0], TopicNotExist(f"topic {name} does not exist: create it first"))
            else:
                kept.append(entry)
        return kept

    def forget_settled(self) -> None:
        """Let go of units that were answered, so that their bodies do not stay in memory."""
        flying = self._flying
        while flying and flying[0].settled:
            flying.popleft()

    def _on_sweep(self) -> None:
        """Report writes that have waited too long for a majority."""
        flying, now = self._flying, self._env.now()
        while flying and (flying[0].settled or flying[0].deadline <= now):
            flying.popleft().fail(
                QuorumTimeout(
                    f"no majority stored the message within {self._limits.quorum_timeout_ms} ms: it may be stored"
                )
            )
        self._sweep = self._env.call_later(SWEEP_S, self._on_sweep) if flying else None

    # ---------------------------------------------------------------- encoding

    def _encode(self, pending: list[_Pending], position: int, records: list[StagedRecord]) -> list[bytes]:
        """The records of a unit whose first byte will stand at `position`; lists them in `records`."""
        self._last_ms = now_ms = max(self._last_ms, self._env.wall_ms())
        store_host = self._store_host
        parts: list[bytes] = []
        add, record = parts.append, records.append
        for request, fields, target, queue, queue_id, messages, _, _ in pending:
            magic = target.magic
            born_timestamp, born_host = fields.born_timestamp, request.origin.born_host
            sys_flag, reconsume_times = fields.sys_flag & _KEPT_SYS_FLAGS, fields.reconsume_times
            queue_offset = queue.staged_offset
            for body, tail, flag, tag_code in messages:
                body_bytes = len(body)
                size = RECORD_HEAD_BYTES + body_bytes + len(tail)
                add(
                    _pack_head(
                        size,
                        magic,
                        crc32(body) & 0x7FFFFFFF,
                        queue_id,
                        flag,
                        queue_offset,
                        position,
                        sys_flag,
                        born_timestamp,
                        born_host,
                        now_ms,
                        store_host,
                        reconsume_times,
                        0,
                        body_bytes,
                    )
                )
                add(body)
                add(tail)
                record((queue, queue_offset, position, size, tag_code))
                queue_offset += 1
                position += size
            queue.staged_offset = queue_offset
        return parts

    def _batch(self, target: SendTarget, body: bytes) -> list[_Message]:
        """The messages in a batch's body."""
        if target.retry_group is not None:
            raise MessageIllegal(f"a batch cannot go to the retry topic {target.topic}: send its messages one by one")
        complete = self._complete
        return [
            (
                message.body,
                complete(message.properties, target)[0],
                message.flag,
                self._tag_code(message.properties),
            )
            for message in decode_batch(body)
        ]

    def _complete(self, properties: bytes, target: SendTarget) -> tuple[bytes, bytes]:
        """A record's part behind the body, with the properties that the broker adds, and the message's unique key."""
        if _DELAY_MARK in properties and target.retry_group is None:
            _refuse_delay(properties)
        added = self._cluster if not properties or properties[-1] == 2 else self._cluster_after_open_end
        unique_key = _value(properties, _UNIQUE_KEY_MARK, _UNIQUE_KEY)
        if not unique_key:
            unique_key = self._unique_keys.next(self._env.wall_ms()).encode()
            added = b"".join((added, _UNIQUE_KEY_MARK, unique_key, b"\x02"))
        size = len(properties) + len(added)
        if size > MAX_PROPERTIES_BYTES:
            raise MessageIllegal(
                f"the properties have {size} bytes with what the broker adds, the limit is {MAX_PROPERTIES_BYTES}"
            )
        return b"".join((target.topic_field, _pack_length(size), properties, added)), unique_key

    def _tag_code(self, properties: bytes) -> int:
        """`tag_code_of`, which decides on every replica; most messages carry a tag that was seen before."""
        tag = _value(properties, _TAGS_MARK, _TAGS)
        if not tag:
            return 0
        code = self._tag_codes.get(tag)
        if code is None:
            code = tag_code_of(properties)
            if len(self._tag_codes) >= MAX_KNOWN_TAGS:
                self._tag_codes.clear()
            self._tag_codes[tag] = code
        return code


def _value(properties: bytes, mark: bytes, name: bytes) -> bytes | None:
    """`find_property` for a name whose `mark`, itself and what ends it, is at hand."""
    at = properties.rfind(mark)
    if at < 0:
        return None
    if at and properties[at - 1] != 2:
        return find_property(properties, name)
    start = at + len(mark)
    end = properties.find(b"\x02", start)
    return properties[start:] if end < 0 else properties[start:end]


def _refuse_delay(properties: bytes) -> None:
    for name in _DELAYS:
        value = find_property(properties, name)
        if value and value.strip() != b"0":
            raise MessageIllegal(
                f"this broker delivers at once: property {name.decode()} = {value[:32].decode(errors='replace')} asks "
                "for a delay; send without it"
            )
