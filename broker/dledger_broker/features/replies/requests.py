"""Requests with replies to messages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from random import randrange
from typing import Final, assert_never

from dledger.environment import Environment
from dledger_broker.clients.relay import Answer, Busy, Delivered, Gone, Outcome, Relay, TimedOut
from dledger_broker.errors import NoSuchQueue
from dledger_broker.kernel import rights
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.routes import Effect, Needs, Route
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.errors import (
    MessageIllegal,
    NoPermission,
    OutcomeUnknown,
    RemotingError,
    ServerError,
    SystemBusy,
    TopicNotExist,
)
from dledger_remoting.headers import (
    PushReplyHeader,
    SendMessageHeader,
    SendMessageResponseHeader,
    encode_ext,
)
from dledger_remoting.hosts import HostAddress
from dledger_remoting.properties import NAME_END, PUSH_REPLY_TIME, REPLY_TO_CLIENT, VALUE_END, find_property
from dledger_remoting.record import MAX_PROPERTIES_BYTES
from dledger_remoting.topics import validate_topic

ANSWERED_WITHIN_S: Final = 3.0
"""Time limit for the requester's answer that it has the reply."""
PUSHES: Final = Effect(changes=False)
"""Effect of a reply: nothing is stored, and the requester gets the reply even if the replier has gone."""
_NOT_STORED: Final = "0"
"""Message id in the answer to a replier. Clients fail without an id."""


class Replies(Part):
    """Forwarder of replies on the leader, which knows where clients are connected."""

    def __init__(
        self,
        machine: BrokerMachine,
        requests: Requests,
        relay: Relay,
        live: LiveConfig,
        env: Environment,
        store_host: HostAddress,
        access: Access,
        reply_topic: str,
    ) -> None:
        self._access = access
        self._reply_topic = reply_topic
        self._machine = machine
        self._requests = requests
        self._relay = relay
        self._live = live
        self._env = env
        self._store_host = store_host

    @property
    def routes(self) -> Mapping[int, Route]:
        """Routes of replies. A reply pushed twice is dropped by its requester, which waits only for the first."""
        return {
            RequestCode.SEND_REPLY_MESSAGE: Route(self.handle, Needs.LEADER, PUSHES, rights=rights.SENDS),
            RequestCode.SEND_REPLY_MESSAGE_V2: Route(self.handle, Needs.LEADER, PUSHES, rights=rights.SENDS),
        }

    def handle(self, request: Request) -> None:
        """Push a reply (324, 325), checked as a message is."""
        header = SendMessageHeader.decode(request.ext)
        if self._access.is_on and header.topic != self._reply_topic:
            raise NoPermission(f"replies go through the topic {self._reply_topic}, which is a right of its own")
        queue_id = self._queue_id(header)
        properties = (header.properties or "").encode()
        self._require_size(request.body, properties)
        requester = (find_property(properties, REPLY_TO_CLIENT.encode()) or b"").decode(errors="replace")
        if not requester:
            raise ServerError(f"reply message properties[{REPLY_TO_CLIENT}] is null: nobody waits for it")
        pushed = self._pushed(request, header, queue_id)
        done = partial(self._done, request, requester, queue_id)
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        self._relay.call(requester, code, encode_ext(pushed), request.body, ANSWERED_WITHIN_S, done)

    def _queue_id(self, header: SendMessageHeader) -> int:
        validate_topic(header.topic)
        topic = self._machine.topic(header.topic)
        if topic is None:
            raise TopicNotExist(f"topic {header.topic} does not exist: reply in the topic of the request's cluster")
        if header.queue_id < 0:
            return randrange(max(1, topic.config.write_queue_nums))
        if header.queue_id >= topic.queue_count:
            raise NoSuchQueue(header.topic, header.queue_id, topic.queue_count)
        return header.queue_id

    def _require_size(self, body: bytes, properties: bytes) -> None:
        for what, size, limit in (
            ("body", len(body), self._live.config.max_message_bytes),
            ("properties", len(properties), MAX_PROPERTIES_BYTES),
        ):
            if size > limit:
                raise MessageIllegal(f"the reply's {what}: {size} bytes, the limit is {limit}")

    def _pushed(self, request: Request, header: SendMessageHeader, queue_id: int) -> PushReplyHeader:
        """Return the header that the requester gets beside the body."""
        now_ms, own = self._env.wall_ms(), header.properties or ""
        end = "" if not own or own.endswith(VALUE_END) else VALUE_END
        return PushReplyHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=f"{own}{end}{PUSH_REPLY_TIME}{NAME_END}{now_ms}{VALUE_END}",
            reconsume_times=header.reconsume_times or 0,
            unit_mode=bool(header.unit_mode),
            born_host=str(request.origin.address),
            store_host=str(self._store_host),
            store_timestamp=now_ms,
        )

    def _done(self, request: Request, requester: str, queue_id: int, outcome: Outcome) -> None:
        error = _error(requester, outcome)
        if error is not None:
            self._requests.fail(request, error)
        else:
            answer = SendMessageResponseHeader(msg_id=_NOT_STORED, queue_id=queue_id, queue_offset=0)
            request.respond(ext=encode_ext(answer))


def _error(requester: str, outcome: Outcome) -> RemotingError | None:
    """Return the error for the replier, or None if the requester has the reply."""
    match outcome:
        case Answer(code=ResponseCode.SUCCESS) | Delivered():
            return None
        case Answer(code=code, remark=remark):
            return ServerError(f"push reply message to {requester} fail: it answered code {code}, {remark}")
        case Gone(may_have_got=False):
            return ServerError(
                f"push reply message fail, channel of <{requester}> not found: it is connected to no node of this group"
            )
        case Gone() | TimedOut():
            return OutcomeUnknown(f"push reply message to {requester} fail: it did not answer, and may have the reply")
        case Busy():
            return SystemBusy("max_relayed_calls requests to clients wait for answers: send the reply again later")
    assert_never(outcome)
