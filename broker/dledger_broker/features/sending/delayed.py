"""Sends of messages with a delay: the sends of one turn are one unit, answered once it is applied.

While many are on their way, the sends of several turns are gathered, as plain sends are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Final

from dledger.environment import Environment
from dledger.errors import LogError, TooLargeError
from dledger_broker.features.delay.asked import Due, RequestedDelay
from dledger_broker.features.delay.messages import DueMessages, WaitingMessage
from dledger_broker.features.quotas.gate import QuotaGate
from dledger_broker.features.sending.dedup.idempotent import IdempotentSends
from dledger_broker.features.sending.dedup.identities import NO_ROWS, identity_seed
from dledger_broker.features.sending.gathering import Gathering
from dledger_broker.features.sending.plain_sends import PlainSends
from dledger_broker.features.sending.single_sends import SingleSend, SingleSends, SingleSendUnits
from dledger_broker.features.sending.tails import RecordTails, properties_of, unique_key_of
from dledger_broker.features.sending.targets import SendTarget
from dledger_broker.features.sending.unit import PendingSend
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.units import FixedRows, NewRecord, UnitOutcome
from dledger_remoting.errors import RemotingError
from dledger_remoting.hotpath import SendV2Fields
from dledger_remoting.record import KEPT_SYS_FLAGS, RECORD_HEAD_BYTES

_request_of: Final = attrgetter("request")
_seed_of: Final = attrgetter("seed")


@dataclass(frozen=True, slots=True)
class DelayedSend:
    """Send that was checked: the waiting message, the data for its answer, and the data by which repetitions are found.

    `size` is the size of the send as a record, in bytes.
    """

    waiting: WaitingMessage
    answered: SingleSend
    compared: PendingSend
    size: int


class DelayedSends:
    """Storage of messages until they are due, which also answers their senders. Messages that are due go to `plain`."""

    def __init__(
        self,
        env: Environment,
        units: SingleSendUnits,
        requests: Requests,
        tails: RecordTails,
        due_messages: DueMessages,
        idempotent: IdempotentSends,
        quotas: QuotaGate,
        plain: PlainSends,
    ) -> None:
        self._units = units
        self._requests = requests
        self._tails = tails
        self._due_messages = due_messages
        self._idempotent = idempotent
        self._quotas = quotas
        self._plain = plain
        self._gathering = Gathering(env, units.in_flight.gather, self._stage)

    def take(
        self, request: Request, fields: SendV2Fields, target: SendTarget, queue_id: int, delay: RequestedDelay
    ) -> None:
        """Store a checked message that requests a delay. Raises `RemotingError`."""
        now_ms = self._due_messages.delay_base_ms()
        if now_ms is None:
            self._due_messages.wait_for_time(request)
            return
        due = self._due_messages.due(delay, now_ms)
        if due is None:
            self._plain.take_due(request, fields, target, queue_id)
        elif not self._due_messages.topic_missing(due, partial(self._requests.resume, request)):
            send = self._make_send(request, fields, target, queue_id, due)
            if self._is_admitted(send, request, fields, target.topic):
                self._gathering.add(send, send.waiting.size)
                self._gathering.flush_later()

    def _is_admitted(self, send: DelayedSend, request: Request, fields: SendV2Fields, topic: str) -> bool:
        """Return whether quotas admit a send.

        A repetition gets the answer of the first send, even if a quota is used up. If a quota refused it, the answer
        would say that nothing was stored.
        """
        if self._quotas.limits((topic,)) and send.compared.seed:
            self._gathering.flush()  # A repetition of an earlier send in this unit must be found, too.
            if not self._idempotent.without_repetitions([send.compared]):
                return False
        return self._plain.admits_another(request, topic, fields.properties.encode())

    def close(self) -> None:
        """Answer all sends under way, because this node will not learn their outcome."""
        self._gathering.flush()
        self._units.close()

    def _make_send(
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
            PendingSend(request, fields, target, target.queue(queue_id), queue_id, parts, key, None, size, seed),
            size,
        )

    # ---------------------------------------------------------------- units

    def _stage(self, sends: list[DelayedSend]) -> None:
        """Stage sends as one unit, or each as its own unit if not all of them may wait.

        Some of them may still wait then.
        """
        if len(sends) == 1 or self._due_messages.have_room([send.waiting for send in sends]):
            self._stage_unit(sends)
        else:
            self._stage_each(sends)

    def _stage_each(self, sends: list[DelayedSend]) -> None:
        for send in sends:
            self._stage_unit([send])

    def _stage_unit(self, sends: list[DelayedSend]) -> None:
        """Stage the sends that repeat no other. Sends that the log refuses are answered, or passed on."""
        compared, rows = [send.compared for send in sends], NO_ROWS
        if any(map(_seed_of, compared)):
            compared, rows = self._idempotent.admit(compared)
            if len(compared) < len(sends):
                admitted = set(map(_request_of, compared))
                sends = [send for send in sends if send.answered.request in admitted]
        if not sends:
            return
        command = self._idempotent.remember_command(compared, rows)
        answered = [
            replace(send.answered, remembered=_is_remembered(compared_send, command))
            for send, compared_send in zip(sends, compared, strict=True)
        ]
        unit = self._units.begin(answered)
        facts = () if command is None else (command,)
        try:
            self._due_messages.store([send.waiting for send in sends], partial(self._on_done, unit), facts)
        except (RemotingError, LogError) as error:
            if isinstance(error, TooLargeError) and len(sends) > 1:
                self._stage_each(sends)
            else:
                unit.fail(error)
            return
        self._units.staged(unit, sum([send.size for send in sends]))

    def _on_done(self, unit: SingleSends, outcome: UnitOutcome) -> None:
        """Count and answer a unit that is applied or lost. Its senders may have been answered before."""
        self._idempotent.applied()
        self._units.settle(unit, outcome)
        self._gathering.flush_later()


def _is_remembered(send: PendingSend, command: FixedRows | None) -> bool | None:
    """Return whether a send with this command in its unit is remembered, or None if its sender does not ask."""
    return command is not None and send.seed != 0 if send.fields.idempotent else None
