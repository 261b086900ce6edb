"""Sends: codes 10, 310 and 320.

All sends of one turn of the event loop, and requests that other nodes passed on meanwhile, are one unit: checked and
collected by `take_run` or `add`, encoded when `flush` stages them, answered when they are applied. Nothing is done per
message that can be done per unit: no task, no future, no lock, no write.

While sends are on their way to a majority, those of several turns gather: a unit is staged once it has half as many
requests as those on their way, when what is on its way gets that low, or after `MAX_GATHER_S`. A lone producer waits
for nothing; of many producers with one send each, a large share is in each unit, and what is done per unit (a write, an
fdatasync, a message to each follower, an answer from it) is done for more of them.

Most sends are JSON requests with one-letter field names to a topic that was sent to before; `take_run` handles these
in one step and leaves everything else, whatever is unusual or wrong with it, to `add`, which knows all checks and their
order. Both collect the same for the same request.

Checks and codes are RocketMQ's `SendMessageProcessor`'s, in its order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from random import randrange
from typing import Final, Protocol

from dledger.environment import Cancellable, Environment
from dledger.errors import LogError
from dledger_broker.errors import NoSuchQueue
from dledger_broker.features.delay.asked import asked_delay
from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.quotas.admission import Admission
from dledger_broker.features.sending.dedup.idempotent import IdempotentSends, write_command
from dledger_broker.features.sending.dedup.identities import NO_ROWS, identity_of_batch, identity_seed
from dledger_broker.features.sending.delayed import DelayedSends
from dledger_broker.features.sending.native_sends import NativeSends
from dledger_broker.features.sending.on_their_way import MAX_GATHER_S, MAX_UNIT_BYTES, UnitsOnTheirWay
from dledger_broker.features.sending.tails import Complete, RecordTails, unique_key_of
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
from dledger_broker.kernel.routes import Effect, Needs, Route
from dledger_broker.kernel.writer import LogWriter
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import (
    MessageIllegal,
    NoPermission,
    OutcomeUnknown,
    RemotingError,
    TopicNotExist,
)
from dledger_remoting.headers_send import WRITE_ALIAS_FIELD, SendMessageHeader
from dledger_remoting.hosts import HostAddress, pack_host
from dledger_remoting.hotpath import SendV2Fields, decode_send_v2_json
from dledger_remoting.ids import UniqueKeyGenerator, offset_message_id_prefix
from dledger_remoting.record import RECORD_HEAD_BYTES, SYS_INNER_BATCH_MASK, SYS_TRANSACTION_MASK

_SEND_PREFIXES: Final = (b'{"code":310,', b'{"code":320,')
_SPECIAL_SYS_FLAGS: Final = SYS_TRANSACTION_MASK | SYS_INNER_BATCH_MASK
_JSON: Final = 0
_RESPONSE: Final = 1


def _may_be_sent_again(request: Request) -> bool:
    """Whether a send came to a write alias, which is there so that none fails; a transaction's message is not stored
    twice, for each copy is asked about.
    """
    if WRITE_ALIAS_FIELD not in request.ext:
        return False
    try:
        header = SendMessageHeader.decode(request.ext)
    except RemotingError:
        return False
    return not header.sys_flag & SYS_TRANSACTION_MASK


STORES: Final = Effect(changes=True, again=_may_be_sent_again)


class Halves(Protocol):
    """What stores the messages of transactions."""

    def take(
        self, request: Request, fields: SendV2Fields, properties: bytes, target: SendTarget, queue_id: int
    ) -> None:
        """Store a half that was checked as any other send; `properties` as they came. Raises `RemotingError`."""


class SendRequests(Part):
    """Stores messages."""

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
        quotas.ask_first(self.flush)
        self._writer = writer
        self._env = env
        self._live = live
        self._targets = targets
        self._tails = RecordTails(live.own.cluster, live.own.region_id, unique_keys, env.wall_ms)
        self._store_host = pack_host(store_host)
        self._id_prefix = offset_message_id_prefix(store_host)
        self._pending: list[PendingSend] = []
        self._pending_bytes = 0
        self._opted_in = False
        self._flush_scheduled = False
        self._on_their_way = UnitsOnTheirWay(env, live.own.quorum_timeout_ms)
        self._gathering: Cancellable | None = None
        self._counters = counters
        self._fail = requests.fail
        around = env, live.own, counters, requests, self._tails, due_messages, idempotent, self._id_prefix
        self._delayed = DelayedSends(*around, self._add_at_once, quotas, self._goes_on)
        self._halves: Halves | None = None
        self._native: NativeSends | None = None
        """What it holds came before what is pending."""
        if env.native is not None:
            args = env.native, machine, writer, live, counters, targets, quotas, self._on_their_way
            self._native = NativeSends(*args, self._store_host, self._id_prefix)

    def attach_halves(self, halves: Halves) -> None:
        """Name what stores the messages of transactions; without it they are refused."""
        self._halves = halves

    @property
    def routes(self) -> Mapping[int, Route]:
        """See `Part.routes`."""
        return {
            RequestCode.SEND_MESSAGE: Route(self.handle, Needs.LEADER, STORES, rights=rights.SENDS),
            RequestCode.SEND_MESSAGE_V2: Route(self.handle, Needs.LEADER, STORES, rights=rights.SENDS),
            RequestCode.SEND_BATCH_MESSAGE: Route(self.handle, Needs.LEADER, STORES, rights=rights.SENDS),
        }

    @property
    def gauges(self) -> Sequence[Gauge]:
        """See `Part.gauges`."""
        return (self._idempotent.gauge,)

    def close(self) -> None:
        """Answer what is under way: this node will not learn its outcome."""
        self.flush()
        self._on_their_way.fail_all(OutcomeUnknown("this node is stopping: the message may be stored"))
        self._idempotent.close()
        self._delayed.close()

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
            bool(header.idempotent),
            header.write_alias,
        )
        self.add(request, fields)

    def take_run(self, reads: Sequence[Read], number: int, place: int, received: float) -> tuple[int, int]:
        """Take the sends from the frame at `place` of `reads[number]` on into the unit of this turn, as `add` does, up
        to the first frame that is anything but an ordinary send. Returns where that is (`len(reads)` if nowhere), and
        leaves it as it was.

        The node leads and is ready.
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
                    # An earlier request of the channel waits for something; sends to an alias have to be marked.
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
                        self._opted_in = True
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
            if self._goes_on(request, target.topic, properties):
                self._halves.take(request, fields, properties, target, queue_id)
            return
        is_batch = fields.batch or request.code == RequestCode.SEND_BATCH_MESSAGE
        of_retry = target.retry_group is not None
        asked = None if is_batch or target.redirected else asked_delay(properties, of_retry=of_retry)
        if asked is not None:
            self._delayed.take(request, fields, target, queue_id, asked)
            return
        self._collect(request, fields, properties, target, queue_id, self._tails.complete)

    def _goes_on(self, request: Request, topic: str, properties: bytes) -> bool:
        """Whether quotas let a send go on that is no part of the unit of this turn.

        What is in that unit asks first: this one may join it behind them, if its time has come.
        """
        if self._quotas.limits((topic,)):
            self.flush()
        return self._quotas.takes(request, topic, 1, _size(request, properties))

    def _add_at_once(self, request: Request, fields: SendV2Fields, target: SendTarget, queue_id: int) -> None:
        """Take a message that was to be delivered at a time which has come."""
        self._collect(request, fields, fields.properties.encode(), target, queue_id, self._tails.complete_anew)
        self.flush_later()

    def _collect(
        self,
        request: Request,
        fields: SendV2Fields,
        properties: bytes,
        target: SendTarget,
        queue_id: int,
        complete: Complete,
    ) -> None:
        """Take messages that are checked into the unit of this turn."""
        body, unique_key = request.body, b""
        is_batch = fields.batch or request.code == RequestCode.SEND_BATCH_MESSAGE
        messages: Sequence[MessageParts]
        sizes: list[int] | None = None
        opted_in = target.idempotent or (fields.idempotent and target.may_be_idempotent)
        seed = 0
        if is_batch:
            messages, with_own_keys = self._tails.batch(body, target)
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
            self._opted_in = True

    @property
    def are_under_way(self) -> bool:
        """Whether sends are on their way, or were a moment ago, or wait to be staged."""
        return self._on_their_way.are_recent or self._waiting()[0] > 0

    def flush_later(self) -> None:
        """As `flush_gathered`, once all connections that have something to read were read."""
        if self._waiting()[0] and not self._flush_scheduled:
            self._flush_scheduled = True
            self._env.call_soon(self._on_turn_end)

    def _on_turn_end(self) -> None:
        self._flush_scheduled = False
        self.flush_gathered()

    def _waiting(self) -> tuple[int, int]:
        """How many sends are not staged yet, and the bytes of their records."""
        if self._native is None:
            return len(self._pending), self._pending_bytes
        return len(self._pending) + self._native.count, self._pending_bytes + self._native.size

    def flush_gathered(self) -> None:
        """Stage what was added, or let more gather while much is on its way."""
        requests, size = self._waiting()
        if not self._on_their_way.gather(requests, size):
            self.flush()
        elif requests and self._gathering is None:
            self._gathering = self._env.call_later(MAX_GATHER_S, self.flush)

    def flush(self) -> None:
        """Stage what was added. Requests that the log refuses are answered, or passed on."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        if self._native is not None and (back := self._native.flush(self._on_applied, self._fail)):
            self._take_back(back)
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        size, self._pending_bytes = self._pending_bytes, 0
        opted_in, self._opted_in = self._opted_in, False
        deleting = self._machine.proposals.topic_deleting
        targets = {entry[2] for entry in pending}
        if any(target.dropped or deleting(target.topic) for target in targets):
            pending = self._without_deleted(pending)
            size = _bytes(pending)
        if self._quotas.limits(target.topic for target in targets):
            takes = self._quotas.takes
            if opted_in:
                # Who repeats what is stored would hear that nothing was, if a quota refused that.
                pending = self._idempotent.without_repetitions(pending)
            pending = [entry for entry in pending if takes(entry[0], entry[2].topic, len(entry[4]), entry[7])]
            size = _bytes(pending)
        rows = NO_ROWS
        if opted_in and pending:
            taken, rows = self._idempotent.admit(pending)
            if taken is not pending:
                pending, size = taken, _bytes(taken)
        if not pending:
            return
        unit = SendUnit(pending, self._on_their_way.deadline(), self._on_applied, self._fail)
        commands = self._idempotent.command(rows)

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
        self._on_their_way.add(unit)

    def _take_back(self, requests: Sequence[Request]) -> None:
        """Take sends that the native part had, ahead of what is pending, which came after them."""
        behind, self._pending, self._pending_bytes = self._pending, [], 0
        for request in requests:
            try:
                self.handle(request)
            except RemotingError as error:
                self._fail(request, error)
        self._pending += behind
        self._pending_bytes = _bytes(self._pending)

    def _count_sizes(self, pending: Sequence[PendingSend], targets: Collection[SendTarget], size: int) -> None:
        """Count the bytes of a unit by topic; most have one."""
        sizes = self._counters.sizes
        if len(targets) == 1:
            sizes.count(pending[0][2].topic, size, len(pending))
        else:
            for entry in pending:
                sizes.count(entry[2].topic, entry[7], 1)

    def _without_deleted(self, pending: list[PendingSend]) -> list[PendingSend]:
        """What remains once the sends whose topic was deleted since they were added look for a topic again.

        Staged, they would be lost, or be taken for records of a topic that is created anew before them in the log.
        """
        deleting = self._machine.proposals.topic_deleting
        kept: list[PendingSend] = []
        for entry in pending:
            name = entry[2].topic
            if entry[2].dropped or deleting(name):
                self._fail(entry[0], TopicNotExist(f"topic {name} does not exist: create it first"))
            else:
                kept.append(entry)
        return kept

    def _on_applied(self, messages: int, deadline: float) -> None:
        """A unit was answered."""
        self._counters.count_sends(messages, self._on_their_way.waited_s(deadline))
        self._on_their_way.let_go()
        self.flush_later()
        self._idempotent.applied()


def _size(request: Request, properties: bytes) -> int:
    """About the size of the record of a message that is stored some other way than in the unit of this turn."""
    return RECORD_HEAD_BYTES + len(request.body) + len(properties)


def _bytes(pending: Iterable[PendingSend]) -> int:
    """The size of the records of some sends."""
    return sum([entry[7] for entry in pending])


def _identity_of_batch(group: str, topic: str, messages: Sequence[MessageParts]) -> int:
    return identity_of_batch(unique_key_of(messages[0][1]), identity_seed(group, topic, len(messages)))
