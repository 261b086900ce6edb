"""Sends (10, 310, 320): the sends of a turn become one unit of the log.

All sends of one turn of the event loop, and requests that other nodes passed on meanwhile, are one unit. `take_run` or
`add` check and collect them, and `flush` encodes and stages them. They are answered once they are applied. Work that
can be done per unit is never done per message: no task, no future, no lock, no write.

While sends are on their way to a majority, sends of several turns gather. A unit is staged once it has half as many
requests as are on their way, at the latest after `MAX_GATHER_S`. A lone producer waits for nothing. With many producers
of one send each, a unit has a large share of them. The work per unit (a write, an fdatasync, a message to each
follower, an answer from it) then serves more sends.

Most sends are JSON requests with one-letter field names, to a topic that was sent to before. `take_run` handles these
in one step. It leaves every unusual or faulty send to `add`, which knows all checks and their order. Both collect the
same for the same request.

Checks and codes, and their order, follow RocketMQ's `SendMessageProcessor`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from random import randrange
from typing import Final, Protocol

from dledger.environment import Cancellable, Environment
from dledger.errors import LogError
from dledger_broker.errors import NoSuchQueue
from dledger_broker.features.delay.asked import find_delay
from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.quotas.admission import Admission
from dledger_broker.features.sending.dedup.idempotent import IdempotentSends, write_command
from dledger_broker.features.sending.dedup.identities import NO_ROWS, identity_of_batch, identity_seed
from dledger_broker.features.sending.delayed import DelayedSends
from dledger_broker.features.sending.effects import STORES
from dledger_broker.features.sending.large_batches import LargeBatch, LargeBatches
from dledger_broker.features.sending.native_sends import NativeSends
from dledger_broker.features.sending.on_their_way import MAX_GATHER_S, MAX_UNIT_BYTES, UnitsInFlight
from dledger_broker.features.sending.tails import BatchNeedsSlices, Complete, PreparedBatch, RecordTails, unique_key_of
from dledger_broker.features.sending.targets import SendTarget, SendTargets
from dledger_broker.features.sending.unit import PendingSend, SendUnit
from dledger_broker.features.sending.unsupported import check_properties, check_sys_flag
from dledger_broker.kernel import rights
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part
from dledger_broker.kernel.records import MessageParts, message_sizes
from dledger_broker.kernel.requests import Read, Request, Requests
from dledger_broker.kernel.routes import Needs, Route
from dledger_broker.kernel.writer import LogWriter
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import (
    MessageIllegal,
    NoPermission,
    OutcomeUnknown,
    RemotingError,
    TopicNotExist,
)
from dledger_remoting.headers_send import SendMessageHeader
from dledger_remoting.hosts import HostAddress, pack_host
from dledger_remoting.hotpath import SendV2Fields, decode_send_v2_json
from dledger_remoting.ids import UniqueKeyGenerator, offset_message_id_prefix
from dledger_remoting.record import RECORD_HEAD_BYTES, SYS_INNER_BATCH_MASK, SYS_TRANSACTION_MASK

_SEND_PREFIXES: Final = (b'{"code":310,', b'{"code":320,')
_SPECIAL_SYS_FLAGS: Final = SYS_TRANSACTION_MASK | SYS_INNER_BATCH_MASK
_JSON: Final = 0
_RESPONSE: Final = 1


class Halves(Protocol):
    """Storage of the messages of transactions."""

    def take(
        self, request: Request, fields: SendV2Fields, properties: bytes, target: SendTarget, queue_id: int
    ) -> None:
        """Store a half that was checked like any other send. `properties` are unchanged. Raises `RemotingError`."""


class SendRequests(Part):
    """Handler of sends."""

    def __init__(
        self,
        machine: BrokerMachine,
        writer: LogWriter,
        env: Environment,
        live: LiveConfig,
        counters: BrokerCounters,
        targets: SendTargets,
        store_host: HostAddress,
        unique_keys: UniqueKeyGenerator,
        requests: Requests,
        idempotent: IdempotentSends,
        due_messages: DueMessages,
        quotas: Admission,
    ) -> None:
        self._machine = machine
        self._idempotent = idempotent
        self._quotas = quotas
        quotas.add_release_hook(self.flush)
        self._writer = writer
        self._env = env
        self._live = live
        self._targets = targets
        self._tails = RecordTails(live.own.cluster, live.own.region_id, unique_keys, env.wall_ms)
        self._store_host = pack_host(store_host)
        self._id_prefix = offset_message_id_prefix(store_host)
        self._pending: list[PendingSend] = []
        self._pending_bytes = 0
        self._has_opted_in = False
        self._flush_scheduled = False
        self._in_flight = UnitsInFlight(env, live.own.quorum_timeout_ms)
        self._gather_timer: Cancellable | None = None
        self._counters = counters
        self._fail = requests.fail
        shared_args = env, live.own, counters, requests, self._tails, due_messages, idempotent, self._id_prefix
        self._large_batches = LargeBatches(env, self._tails, self._add_prepared, self._fail)
        self._delayed = DelayedSends(*shared_args, self._add_due_message, quotas, self._is_admitted)
        self._halves: Halves | None = None
        self._native: NativeSends | None = None
        """Sends in the native part, which arrived before the pending sends."""
        if env.native is not None:
            args = env.native, machine, writer, live, counters, targets, quotas, self._in_flight
            self._native = NativeSends(*args, self._store_host, self._id_prefix)

    def attach_halves(self, halves: Halves) -> None:
        """Set the storage of messages of transactions. Without it they are refused."""
        self._halves = halves

    @property
    def routes(self) -> Mapping[int, Route]:
        return {
            RequestCode.SEND_MESSAGE: Route(self.handle, Needs.LEADER, STORES, rights=rights.SENDS),
            RequestCode.SEND_MESSAGE_V2: Route(self.handle, Needs.LEADER, STORES, rights=rights.SENDS),
            RequestCode.SEND_BATCH_MESSAGE: Route(self.handle, Needs.LEADER, STORES, rights=rights.SENDS),
        }

    @property
    def gauges(self) -> Sequence[Gauge]:
        return (self._idempotent.gauge,)

    def close(self) -> None:
        """Answer all sends under way, because this node will not learn their outcome."""
        self._large_batches.close()
        self.flush()
        self._in_flight.fail_all(OutcomeUnknown("this node is stopping: the message may be stored"))
        self._idempotent.close()
        self._delayed.close()

    def handle(self, request: Request) -> None:
        """Handle a send of any serializer and either form of field names."""
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
            bool(header.idempotent),
            header.write_alias,
        )
        self.add(request, fields)

    def take_run(self, reads: Sequence[Read], number: int, place: int, received: float) -> tuple[int, int]:
        """Take sends into the unit of this turn, from the frame at `place` of `reads[number]` on, as `add` does.

        Stop at the first frame that is not an ordinary send, and leave it unchanged. Return its place; the number is
        `len(reads)` if all frames were taken. This node must be the ready leader.
        """
        if self._native is not None and not self._pending:
            full = True
            while full:
                number, place, full = self._native.take(reads, number, place, received)
                if full:
                    self.flush()
        known, complete = self._targets.known, self._tails.complete
        max_body_bytes = self._live.config.max_message_bytes
        pending, pending_bytes = self._pending, self._pending_bytes
        topic, target = "", None
        group: str | None = None
        group_seed = taken = 0
        try:
            while number < len(reads):
                origin, data, frames = reads[number]
                if origin.forwards or origin.alias is not None:
                    # An earlier request of the channel waits for something, or the sends go to an alias and have to be
                    # marked.
                    return number, place
                while place < len(frames):
                    header_start, body_start, frame_end, serialize_type = frames[place]
                    if serialize_type != _JSON or not data.startswith(_SEND_PREFIXES, header_start):
                        return number, place
                    header = data[header_start:body_start]
                    send = decode_send_v2_json(header)
                    if send is None or send.flag & _RESPONSE:
                        return number, place
                    fields = send.ext
                    if fields.topic != topic:
                        topic, group = fields.topic, None
                        target = known(topic)
                    queue_id = fields.queue_id
                    if (
                        target is None
                        or not 0 <= queue_id < target.queue_count
                        or frame_end - body_start > max_body_bytes
                        or fields.sys_flag & _SPECIAL_SYS_FLAGS
                        or fields.write_alias is not None
                    ):
                        return number, place
                    body = data[body_start:frame_end]
                    is_batch = fields.batch or send.code == RequestCode.SEND_BATCH_MESSAGE
                    messages: Sequence[MessageParts]
                    sizes: list[int] | None
                    try:
                        if is_batch:
                            unique_key = b""
                            messages, with_own_keys = self._tails.batch(body, target)
                            sizes = message_sizes(messages)
                            size = sum(sizes)
                        else:
                            sizes = None
                            tail, unique_key, tag_code, has_own_key = complete(fields.properties.encode(), target)
                            messages = ((body, tail, fields.user_flag, tag_code),)
                            size = RECORD_HEAD_BYTES + len(body) + len(tail)
                    except MessageIllegal:
                        return number, place
                    place += 1
                    taken += 1
                    origin.in_flight += 1
                    request = Request(origin, send.code, send.opaque, send.flag, _JSON, header, body, received)
                    if pending_bytes + size > MAX_UNIT_BYTES:
                        self._pending_bytes = pending_bytes
                        self.flush()
                        pending, pending_bytes = self._pending, 0
                    seed = 0
                    if target.idempotent or (fields.idempotent and target.may_be_idempotent):
                        self._has_opted_in = True
                        if sizes is not None:
                            if with_own_keys:
                                seed = _identity_of_batch(fields.producer_group, target.topic, messages)
                        elif has_own_key:
                            if fields.producer_group != group:
                                group = fields.producer_group
                                group_seed = identity_seed(group, target.topic)
                            seed = group_seed
                    queue = target.by_id[queue_id] or target.queue(queue_id)
                    pending.append((request, fields, target, queue, messages, unique_key, sizes, size, seed, queue_id))
                    pending_bytes += size
                number, place = number + 1, 0
            return number, place
        finally:
            self._pending_bytes = pending_bytes
            self._counters.requests += taken

    def add(self, request: Request, fields: SendV2Fields) -> None:
        """Check a send and take it into the unit of this turn. Raises `RemotingError` with RocketMQ's code."""
        target = self._targets.get(request, fields)
        if target is None:
            return
        queue_id = fields.queue_id
        if fields.write_alias is not None and not target.redirected:
            queue_id = fields.write_alias % target.write_queues
        elif queue_id < 0 or target.redirected:
            queue_id = randrange(target.write_queues)
        elif queue_id >= target.queue_count:
            raise NoSuchQueue(target.topic, queue_id, target.queue_count)
        body = request.body
        if len(body) > self._live.config.max_message_bytes:
            raise MessageIllegal(
                f"the message body has {len(body)} bytes, the limit is {self._live.config.max_message_bytes}"
            )
        check_sys_flag(fields.sys_flag)
        properties = fields.properties.encode()
        if fields.sys_flag & SYS_TRANSACTION_MASK:
            check_properties(properties)
            if self._halves is None:
                raise NoPermission("this broker does not take transactional messages: send without a transaction")
            if self._is_admitted(request, target.topic, properties):
                self._halves.take(request, fields, properties, target, queue_id)
            return
        is_batch = fields.batch or request.code == RequestCode.SEND_BATCH_MESSAGE
        of_retry = target.retry_group is not None
        delay = None if is_batch or target.redirected else find_delay(properties, of_retry=of_retry)
        if delay is not None:
            self._delayed.take(request, fields, target, queue_id, delay)
            return
        self._collect(request, fields, properties, target, queue_id, self._tails.complete)

    def _is_admitted(self, request: Request, topic: str, properties: bytes) -> bool:
        """Return whether quotas admit a send outside the unit of this turn. The sends in that unit reach the quotas
        first. If the time of this send's message has come, it may join the unit behind them.
        """
        if self._quotas.limits((topic,)):
            self.flush()
        return self._quotas.admits(request, topic, 1, _size(request, properties))

    def _add_due_message(self, request: Request, fields: SendV2Fields, target: SendTarget, queue_id: int) -> None:
        """Take a message whose delivery time has come."""
        self._collect(request, fields, fields.properties.encode(), target, queue_id, self._tails.complete_anew)
        self.flush_later()

    def _add_prepared(self, large: LargeBatch, batch: PreparedBatch) -> None:
        """Take a batch that was prepared in slices."""
        self._collect(large.request, large.fields, b"", large.target, large.queue_id, self._tails.complete, batch)
        self.flush_later()

    def _collect(
        self,
        request: Request,
        fields: SendV2Fields,
        properties: bytes,
        target: SendTarget,
        queue_id: int,
        complete: Complete,
        batch: PreparedBatch | None = None,
    ) -> None:
        """Take checked messages into the unit of this turn."""
        body, unique_key = request.body, b""
        is_batch = fields.batch or request.code == RequestCode.SEND_BATCH_MESSAGE
        messages: Sequence[MessageParts]
        sizes: list[int] | None = None
        opted_in = target.idempotent or (fields.idempotent and target.may_be_idempotent)
        seed = 0
        if is_batch:
            try:
                messages, with_own_keys = batch or self._tails.batch(body, target)
            except BatchNeedsSlices:
                self._large_batches.take(LargeBatch(request, fields, target, queue_id))
                return
            sizes = message_sizes(messages)
            size = sum(sizes)
            if opted_in and with_own_keys:
                seed = _identity_of_batch(fields.producer_group, target.topic, messages)
        else:
            tail, unique_key, tag_code, has_own_key = complete(properties, target)
            messages = ((body, tail, fields.user_flag, tag_code),)
            size = RECORD_HEAD_BYTES + len(body) + len(tail)
            if opted_in and has_own_key:
                seed = identity_seed(fields.producer_group, target.topic)
        if self._pending_bytes + size > MAX_UNIT_BYTES:
            self.flush()
        queue = target.queue(queue_id)
        self._pending.append((request, fields, target, queue, messages, unique_key, sizes, size, seed, queue_id))
        self._pending_bytes += size
        if seed:
            self._has_opted_in = True

    @property
    def has_sends_in_flight(self) -> bool:
        """True if sends are on their way, or were a moment ago, or wait to be staged."""
        return self._in_flight.has_recent_units or self._waiting()[0] > 0

    def flush_later(self) -> None:
        """Call `flush_gathered` once all connections with something to read were read."""
        if self._waiting()[0] and not self._flush_scheduled:
            self._flush_scheduled = True
            self._env.call_soon(self._on_turn_end)

    def _on_turn_end(self) -> None:
        self._flush_scheduled = False
        self.flush_gathered()

    def _waiting(self) -> tuple[int, int]:
        """Return how many sends are not staged yet, and the size of their records."""
        if self._native is None:
            return len(self._pending), self._pending_bytes
        return len(self._pending) + self._native.count, self._pending_bytes + self._native.size

    def flush_gathered(self) -> None:
        """Stage what was added, or let more gather while much is on its way."""
        requests, size = self._waiting()
        if not self._in_flight.gather(requests, size):
            self.flush()
        elif requests and self._gather_timer is None:
            self._gather_timer = self._env.call_later(MAX_GATHER_S, self.flush)

    def flush(self) -> None:
        """Stage what was added. Requests that the log refuses are answered, or passed on."""
        if self._gather_timer is not None:
            self._gather_timer.cancel()
            self._gather_timer = None
        if self._native is not None and (returned := self._native.flush(self._on_applied, self._fail)):
            self._requeue(returned)
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        size, self._pending_bytes = self._pending_bytes, 0
        opted_in, self._has_opted_in = self._has_opted_in, False
        deleting = self._machine.proposals.topic_deleting
        targets = {entry[2] for entry in pending}
        if any(target.dropped or deleting(target.topic) for target in targets):
            pending = self._drop_deleted_topics(pending)
            size = _bytes(pending)
        if self._quotas.limits(target.topic for target in targets):
            admits = self._quotas.admits
            if opted_in:
                # If a quota refused a repetition of a stored send, the answer would say that nothing was stored.
                pending = self._idempotent.without_repetitions(pending)
            pending = [entry for entry in pending if admits(entry[0], entry[2].topic, len(entry[4]), entry[7])]
            size = _bytes(pending)
        rows = NO_ROWS
        if opted_in and pending:
            admitted, rows = self._idempotent.admit(pending)
            if admitted is not pending:
                pending, size = admitted, _bytes(admitted)
        if not pending:
            return
        commands = self._idempotent.command(rows)
        deadline = self._in_flight.deadline()
        unit = SendUnit(pending, deadline, self._on_applied, self._fail, remembers=bool(commands))

        def fill(position: int, now_ms: int) -> list[bytes]:
            if commands:
                write_command(commands, rows, position)
            return unit.encode(position, now_ms, self._store_host, self._id_prefix)

        try:
            begin = self._writer.stage_unit(size, fill, commands, unit)
        except LogError as error:
            for entry in pending:
                self._fail(entry[0], error)
            return
        if commands:
            self._idempotent.staged(begin, rows)
        self._counters.bytes_in += size
        self._count_sizes(pending, targets, size)
        self._in_flight.add(unit)

    def _requeue(self, requests: Sequence[Request]) -> None:
        """Take sends back from the native part, ahead of the pending sends, which arrived after them."""
        later_sends, self._pending, self._pending_bytes = self._pending, [], 0
        for request in requests:
            try:
                self.handle(request)
            except RemotingError as error:
                self._fail(request, error)
        self._pending += later_sends
        self._pending_bytes = _bytes(self._pending)

    def _count_sizes(self, pending: Sequence[PendingSend], targets: Collection[SendTarget], size: int) -> None:
        """Count the bytes of a unit by topic. Most units have one topic."""
        sizes = self._counters.sizes
        if len(targets) == 1:
            sizes.count(pending[0][2].topic, size, len(pending))
        else:
            for entry in pending:
                sizes.count(entry[2].topic, entry[7], 1)

    def _drop_deleted_topics(self, pending: list[PendingSend]) -> list[PendingSend]:
        """Refuse the sends whose topic was deleted since they were added, and return the other sends.

        If staged, they would be lost, or be taken for records of a topic that is created anew before them in the log.
        """
        deleting = self._machine.proposals.topic_deleting
        remaining: list[PendingSend] = []
        for entry in pending:
            name = entry[2].topic
            if entry[2].dropped or deleting(name):
                self._fail(entry[0], TopicNotExist(f"topic {name} does not exist: create it first"))
            else:
                remaining.append(entry)
        return remaining

    def _on_applied(self, messages: int, deadline: float) -> None:
        """Count a unit that was applied and answered."""
        self._counters.count_sends(messages, self._in_flight.waited_s(deadline))
        self._in_flight.drop_settled()
        self.flush_later()
        self._idempotent.applied()


def _size(request: Request, properties: bytes) -> int:
    """Return the approximate size of the record of a message that is not stored with the unit of this turn."""
    return RECORD_HEAD_BYTES + len(request.body) + len(properties)


def _bytes(pending: Iterable[PendingSend]) -> int:
    """Return the size of the records of some sends."""
    return sum([entry[7] for entry in pending])


def _identity_of_batch(group: str, topic: str, messages: Sequence[MessageParts]) -> int:
    return identity_of_batch(unique_key_of(messages[0][1]), identity_seed(group, topic, len(messages)))
