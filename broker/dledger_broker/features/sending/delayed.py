"""Sends of messages that are to be delivered later: each is a unit of its own, answered once it is applied."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from dledger.environment import Cancellable, Environment
from dledger_broker.config import BrokerConfig
from dledger_broker.features.delay.asked import Asked, Due
from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.sending.dedup.idempotent import IdempotentSends
from dledger_broker.features.sending.dedup.identities import NO_ROWS, UnitRows, identity_seed
from dledger_broker.features.sending.tails import RecordTails, properties_of, unique_key_of
from dledger_broker.features.sending.targets import SendTarget
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.records import MessageParts
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.units import NewRecord, Stored, UnitOutcome, failure
from dledger_remoting.errors import OutcomeUnknown, QuorumTimeout
from dledger_remoting.hotpath import SendV2Fields, send_response_frame
from dledger_remoting.record import KEPT_SYS_FLAGS, RECORD_HEAD_BYTES

DeliverAtOnce: TypeAlias = Callable[[Request, SendV2Fields, SendTarget, int], None]
"""Takes a message whose time has come."""

_POSITION: Final = b"%016X"


class DelayedSends:
    """Stores messages until they are due, and answers their senders. `id_prefix` begins the message ids."""

    def __init__(
        self,
        env: Environment,
        limits: BrokerConfig,
        counters: BrokerCounters,
        requests: Requests,
        tails: RecordTails,
        due_messages: DueMessages,
        idempotent: IdempotentSends,
        id_prefix: bytes,
        deliver_at_once: DeliverAtOnce,
    ) -> None:
        self._env = env
        self._limits = limits
        self._counters = counters
        self._requests = requests
        self._tails = tails
        self._due_messages = due_messages
        self._idempotent = idempotent
        self._id_prefix = id_prefix
        self._deliver_at_once = deliver_at_once
        self._waiting: dict[Request, Cancellable] = {}

    def take(self, request: Request, fields: SendV2Fields, target: SendTarget, queue_id: int, asked: Asked) -> None:
        """Store a message that is checked and asks for a delay. Raises `RemotingError`, `LogError`."""
        now_ms = self._due_messages.reckoned_from_ms()
        if now_ms is None:
            self._due_messages.wait_for_time(request)
            return
        due = self._due_messages.due(asked, now_ms)
        if due is None:
            self._deliver_at_once(request, fields, target, queue_id)
        else:
            self._store(request, fields, target, queue_id, due)

    def _store(self, request: Request, fields: SendV2Fields, target: SendTarget, queue_id: int, due: Due) -> None:
        if self._due_messages.topic_missing(due, partial(self._requests.resume, request)):
            return
        tail, unique_key, tag_code, has_own_key = self._tails.complete_anew(fields.properties.encode(), target)
        rows: UnitRows | None = NO_ROWS
        if has_own_key and (target.idempotent or (fields.idempotent and target.may_be_idempotent)):
            rows = self._admit(request, fields, target, queue_id, (request.body, tail, fields.user_flag, tag_code))
        if rows is None:
            return
        message = NewRecord(
            topic=target.topic,
            queue_id=queue_id,
            body=request.body,
            properties=properties_of(tail, target),
            flag=fields.user_flag,
            sys_flag=fields.sys_flag & KEPT_SYS_FLAGS,
            born_ms=fields.born_timestamp,
            born_host=request.origin.born_host,
            reconsume_times=fields.reconsume_times,
        )
        remembering = self._idempotent.remembering(rows)
        facts = () if remembering is None else (remembering,)
        handle = self._due_messages.recall_handle(target.topic, due, unique_key)
        self._due_messages.store(message, due, partial(self._stored, request, queue_id, unique_key, handle), facts)
        self._counters.bytes_in += message.size
        timeout_s = self._limits.quorum_timeout_ms / 1000
        self._waiting[request] = self._env.call_later(timeout_s, partial(self._timed_out, request))

    def _admit(
        self, request: Request, fields: SendV2Fields, target: SendTarget, queue_id: int, parts: MessageParts
    ) -> UnitRows | None:
        """What is to be remembered of an idempotent send; None if it repeats another one, as which it is answered."""
        body, tail, _, _ = parts
        seed, queue = identity_seed(fields.producer_group, target.topic), target.queue(queue_id)
        size = RECORD_HEAD_BYTES + len(body) + len(tail)
        send = (request, fields, target, queue, (parts,), unique_key_of(tail), None, size, seed, queue_id)
        taken, rows = self._idempotent.admit([send])
        return rows if taken else None

    def _stored(self, request: Request, queue_id: int, unique_key: bytes, handle: bytes, outcome: UnitOutcome) -> None:
        self._idempotent.applied()
        timer = self._waiting.pop(request, None)
        if timer is None:
            return  # it was answered that its outcome is unknown
        timer.cancel()
        place = outcome.places[0] if isinstance(outcome, Stored) else None
        if place is None:
            unknown = "leadership was lost before a majority had the message: it may be stored"
            self._requests.fail(request, failure(outcome, unknown))
            return
        self._counters.messages_in += 1
        if request.is_oneway:
            request.origin.settle()
            return
        frame = send_response_frame(
            request.opaque,
            self._id_prefix + _POSITION % place.position,
            queue_id,
            place.queue_offset,
            unique_key,
            serialize_type=request.serialize_type,
            recall_handle=handle,
        )
        request.origin.answer_frame(frame)

    def _timed_out(self, request: Request) -> None:
        del self._waiting[request]
        limit = self._limits.quorum_timeout_ms
        self._requests.fail(
            request, QuorumTimeout(f"no majority stored the message within {limit} ms: it may be stored")
        )

    def close(self) -> None:
        """Answer what is under way: this node will not learn its outcome."""
        for request, timer in list(self._waiting.items()):
            timer.cancel()
            self._requests.fail(request, OutcomeUnknown("this node is stopping: the message may be stored"))
        self._waiting.clear()
