"""Sends (10, 310, 320): the sends of a turn become one unit of the log.

All sends of one turn of the event loop, and requests that other nodes passed on meanwhile, are one unit. `take_run` or
`add` check them, and `PlainSends` collects and stages them. They are answered once they are applied. Messages with a
delay (`DelayedSends`) and messages of transactions (`Halves`) pass the same checks, and become units of their own.

While sends are on their way to a majority, sends of several turns gather. A unit is staged once it has half as many
requests as are on their way, at the latest after `MAX_GATHER_S`. A lone producer waits for nothing. With many producers
of one send each, a unit has a large share of them. The work per unit (a write, an fdatasync, a message to each
follower, an answer from it) then serves more sends.

Most sends are JSON requests with one-letter field names, to a topic that was sent to before. `take_run` handles these
in one step. It leaves every unusual or faulty send to `add`, which knows all checks and their order. Both end in
`PlainSends.prepare` and `Gathering.add`.

Checks and codes, and their order, follow RocketMQ's `SendMessageProcessor`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import randrange
from typing import Final

from dledger.statemachine import Leadership
from dledger_broker.errors import NoSuchQueue
from dledger_broker.features.delay.asked import find_delay
from dledger_broker.features.sending.dedup.idempotent import IdempotentSends
from dledger_broker.features.sending.delayed import DelayedSends
from dledger_broker.features.sending.effects import STORES
from dledger_broker.features.sending.on_their_way import UnitsInFlight
from dledger_broker.features.sending.plain_sends import PlainSends
from dledger_broker.features.sending.tails import RecordTails
from dledger_broker.features.sending.targets import SendTarget, SendTargets
from dledger_broker.features.sending.unsupported import check_properties, check_sys_flag
from dledger_broker.kernel import rights
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.parts import Gauge, Part, Parts
from dledger_broker.kernel.requests import Read, Request
from dledger_broker.kernel.routes import Needs, Route
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import (
    MessageIllegal,
    NoPermission,
)
from dledger_remoting.headers_send import SendMessageHeader
from dledger_remoting.hotpath import SendV2Fields, decode_send_v2_json
from dledger_remoting.record import SYS_INNER_BATCH_MASK, SYS_TRANSACTION_MASK

_SEND_PREFIXES: Final = (b'{"code":310,', b'{"code":320,')
_SPECIAL_SYS_FLAGS: Final = SYS_TRANSACTION_MASK | SYS_INNER_BATCH_MASK
_JSON: Final = 0
_RESPONSE: Final = 1


class Halves:
    """Storage of the messages of transactions. Without it they are refused."""

    def take(
        self, request: Request, fields: SendV2Fields, properties: bytes, target: SendTarget, queue_id: int
    ) -> None:
        """Store a half that was checked like any other send. `properties` are unchanged. Raises `RemotingError`."""
        raise NotImplementedError


class SendRequests(Part):
    """Handler of sends: the one check of all, and the way that each takes then."""

    def __init__(
        self,
        live: LiveConfig,
        counters: BrokerCounters,
        targets: SendTargets,
        tails: RecordTails,
        plain: PlainSends,
        in_flight: UnitsInFlight,
        delayed: DelayedSends,
        idempotent: IdempotentSends,
    ) -> None:
        self._live = live
        self._counters = counters
        self._targets = targets
        self._complete = tails.complete
        self._plain = plain
        self.gathering = plain.gathering
        """The plain sends that are not staged yet."""
        self._in_flight = in_flight
        self._delayed = delayed
        self._idempotent = idempotent
        self._halves: Halves | None = None

    def meet(self, parts: Parts) -> None:
        self._halves = parts.find(Halves)

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

    def new_leadership(self, leadership: Leadership) -> None:
        self._idempotent.new_leadership(leadership)

    def leader_changed(self) -> None:
        self._targets.forget()

    def topics_changed(self) -> None:
        self._targets.forget()

    def groups_changed(self) -> None:
        self._targets.forget()

    def members_changed(self) -> None:
        self._idempotent.members_changed()

    def refused(self, position: int) -> None:
        self._idempotent.refused(position)

    def sends_go_on(self) -> None:
        self.gathering.flush()

    def close(self) -> None:
        """Answer all sends under way, because this node will not learn their outcome."""
        self._plain.close()
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
        plain, complete, known, add = self._plain, self._complete, self._targets.known, self.gathering.add
        max_body_bytes = self._live.config.max_message_bytes
        if plain.native is not None:
            number, place = plain.take_natively(reads, number, place, received)
        topic, target = "", None
        taken = 0
        while number < len(reads):
            origin, data, frames = reads[number]
            if origin.forwards or origin.alias is not None:
                # An earlier request of the channel waits for something, or the sends go to an alias and have to be
                # marked.
                break
            while place < len(frames):
                header_start, body_start, frame_end, serialize_type = frames[place]
                if serialize_type != _JSON or not data.startswith(_SEND_PREFIXES, header_start):
                    break
                header = data[header_start:body_start]
                send = decode_send_v2_json(header)
                if send is None or send.flag & _RESPONSE:
                    break
                fields = send.ext
                if fields.topic != topic:
                    topic = fields.topic
                    target = known(topic)
                queue_id = fields.queue_id
                if (
                    target is None
                    or not 0 <= queue_id < target.queue_count
                    or frame_end - body_start > max_body_bytes
                    or fields.sys_flag & _SPECIAL_SYS_FLAGS
                    or fields.write_alias is not None
                ):
                    break
                body = data[body_start:frame_end]
                request = Request(origin, send.code, send.opaque, send.flag, _JSON, header, body, received)
                try:
                    prepared = plain.prepare(request, fields, fields.properties.encode(), target, queue_id, complete)
                except MessageIllegal:
                    break
                origin.in_flight += 1
                add(prepared, prepared.size)
                place += 1
                taken += 1
            if place < len(frames):
                break
            number, place = number + 1, 0
        self._counters.requests += taken
        return number, place

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
            if self._plain.admits_another(request, target.topic, properties):
                self._halves.take(request, fields, properties, target, queue_id)
            return
        is_batch = fields.batch or request.code == RequestCode.SEND_BATCH_MESSAGE
        of_retry = target.retry_group is not None
        delay = None if is_batch or target.redirected else find_delay(properties, of_retry=of_retry)
        if delay is not None:
            self._delayed.take(request, fields, target, queue_id, delay)
            return
        self._plain.take(request, fields, properties, target, queue_id, self._complete)

    @property
    def has_sends_in_flight(self) -> bool:
        """True if sends are on their way, or were a moment ago, or wait to be staged."""
        return self._in_flight.requests > 0 or len(self.gathering) > 0 or self._in_flight.is_recent
