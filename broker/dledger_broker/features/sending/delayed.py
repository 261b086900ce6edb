"""Sends of messages that are to be delivered later: those of one turn are one unit, answered once it is applied.

While many are on their way those of several turns gather, as plain sends do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Final, TypeAlias, cast

from dledger.environment import Environment
from dledger.errors import LogError, TooLargeError
from dledger_broker.config import BrokerConfig
from dledger_broker.features.delay.asked import Asked, Due
from dledger_broker.features.delay.messages import DueMessages, WaitingMessage
from dledger_broker.features.quotas.admission import Admission
from dledger_broker.features.sending.dedup.idempotent import IdempotentSends
from dledger_broker.features.sending.dedup.identities import NO_ROWS, identity_seed
from dledger_broker.features.sending.gathering import Gathering
from dledger_broker.features.sending.on_their_way import UnitsOnTheirWay
from dledger_broker.features.sending.single_sends import SingleSend, SingleSends
from dledger_broker.features.sending.tails import RecordTails, properties_of, unique_key_of
from dledger_broker.features.sending.targets import SendTarget
from dledger_broker.features.sending.unit import PendingSend
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.units import NewRecord, Place, Stored, UnitOutcome, failure
from dledger_remoting.errors import OutcomeUnknown, RemotingError
from dledger_remoting.hotpath import SendV2Fields
from dledger_remoting.record import KEPT_SYS_FLAGS, RECORD_HEAD_BYTES

DeliverAtOnce: TypeAlias = Callable[[Request, SendV2Fields, SendTarget, int], None]
"""Takes a message whose time has come."""
GoesOn: TypeAlias = Callable[[Request, str, bytes], bool]
"""Whether quotas let a send to a topic go on, which has these properties."""

_REQUEST: Final = itemgetter(0)
_SEED: Final = itemgetter(8)
"""Of a `PendingSend`."""


@dataclass(frozen=True, slots=True)
class DelayedSend:
    """A send that was checked: the message as it waits, how its sender is answered, by what repetitions are known.

    `size` are the bytes of what was sent, as a record.
    """

    waiting: WaitingMessage
    answered: SingleSend
    compared: PendingSend
    size: int


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
        quotas: Admission,
        goes_on: GoesOn,
    ) -> None:
        self._quotas = quotas
        self._goes_on = goes_on
        self._counters = counters
        self._requests = requests
        self._tails = tails
        self._due_messages = due_messages
        self._idempotent = idempotent
        self._id_prefix = id_prefix
        self._deliver_at_once = deliver_at_once
        self._on_their_way = UnitsOnTheirWay(env, limits.quorum_timeout_ms)
        self._gathering = Gathering(env, self._on_their_way.gather, self._stage)

    def take(self, request: Request, fields: SendV2Fields, target: SendTarget, queue_id: int, asked: Asked) -> None:
        """Store a message that is checked and asks for a delay. Raises `RemotingError`."""
        now_ms = self._due_messages.reckoned_from_ms()
        if now_ms is None:
            self._due_messages.wait_for_time(request)
            return
        due = self._due_messages.due(asked, now_ms)
        if due is None:
            self._deliver_at_once(request, fields, target, queue_id)
        elif not self._due_messages.topic_missing(due, partial(self._requests.resume, request)):
            send = self._checked(request, fields, target, queue_id, due)
            if self._is_admitted(send, request, fields, target.topic):
                self._gathering.add(send, send.waiting.size)

    def _is_admitted(self, send: DelayedSend, request: Request, fields: SendV2Fields, topic: str) -> bool:
        """Whether quotas let a send go on. One that repeats another one is answered as that, whatever is used up: if a
        quota refused it, its sender would hear that nothing was stored.
        """
        if self._quotas.limits((topic,)) and _SEED(send.compared):
            self._gathering.flush()  # what came before is compared with, too
            if not self._idempotent.without_repetitions([send.compared]):
                return False
        return self._goes_on(request, topic, fields.properties.encode())

    def close(self) -> None:
        """Answer what is under way: this node will not learn its outcome."""
        self._gathering.flush()
        self._on_their_way.fail_all(OutcomeUnknown("this node is stopping: the message may be stored"))

    def _checked(
        self, request: Request, fields: SendV2Fields, target: SendTarget, queue_id: int, due: Due
    ) -> DelayedSend:
        body = request.body
        tail, unique_key, tag_code, has_own_key = self._tails.complete_anew(fields.properties.encode(), target)
        message = NewRecord(
            topic=target.topic,
            queue_id=queue_id,
            body=body,
            properties=properties_of(tail, target),
            flag=fields.user_flag,
            sys_flag=fields.sys_flag & KEPT_SYS_FLAGS,
            born_ms=fields.born_timestamp,
            born_host=request.origin.born_host,
            reconsume_times=fields.reconsume_times,
        )
        size, seed, key = RECORD_HEAD_BYTES + len(body) + len(tail), 0, unique_key
        if has_own_key and (target.idempotent or (fields.idempotent and target.may_be_idempotent)):
            seed, key = identity_seed(fields.producer_group, target.topic), unique_key_of(tail)
        parts = ((body, tail, fields.user_flag, tag_code),)
        handle = self._due_messages.recall_handle(target.topic, due, unique_key)
        return DelayedSend(
            self._due_messages.waiting(message, due),
            SingleSend(request, queue_id, unique_key, handle),
            (request, fields, target, target.queue(queue_id), parts, key, None, size, seed, queue_id),
            size,
        )

    # ---------------------------------------------------------------- units

    def _stage(self, sends: list[DelayedSend]) -> None:
        """Stage sends as one unit; each as one of its own if not all of them may wait, for then some may."""
        if len(sends) == 1 or self._due_messages.have_room([send.waiting for send in sends]):
            self._stage_unit(sends)
        else:
            self._stage_each(sends)

    def _stage_each(self, sends: list[DelayedSend]) -> None:
        for send in sends:
            self._stage_unit([send])

    def _stage_unit(self, sends: list[DelayedSend]) -> None:
        """Stage those that repeat nothing. What the log refuses is answered, or passed on."""
        compared, rows = [send.compared for send in sends], NO_ROWS
        if any(map(_SEED, compared)):
            compared, rows = self._idempotent.admit(compared)
            if len(compared) < len(sends):
                kept = set(map(_REQUEST, compared))
                sends = [send for send in sends if send.answered.request in kept]
        if not sends:
            return
        unit = SingleSends([send.answered for send in sends], self._on_their_way.deadline(), self._requests.fail)
        remembering = self._idempotent.remembering(compared, rows)
        facts = () if remembering is None else (remembering,)
        try:
            self._due_messages.store([send.waiting for send in sends], partial(self._done, unit), facts)
        except (RemotingError, LogError) as error:
            if isinstance(error, TooLargeError) and len(sends) > 1:
                self._stage_each(sends)
            else:
                unit.fail(error)
            return
        self._counters.bytes_in += sum([send.size for send in sends])
        self._on_their_way.add(unit)

    def _done(self, unit: SingleSends, outcome: UnitOutcome) -> None:
        """A unit is applied or lost, whatever its senders were told meanwhile."""
        self._idempotent.applied()
        if isinstance(outcome, Stored):
            self._counters.count_sends(unit.requests, self._on_their_way.waited_s(unit.deadline))
            places = cast(Sequence[Place], outcome.places)  # the topic was there in the turn that staged them
            unit.stored(places, self._id_prefix)
        else:
            unit.fail(failure(outcome, "leadership was lost before a majority had the message: it may be stored"))
        self._on_their_way.let_go()
        self._gathering.flush_later()
