"""Plain sends: their messages can be read as soon as they are applied. The sends of a turn become one unit of the log.

Work that can be done per unit is never done per message: no task, no future, no lock, no write.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Final

from dledger.environment import Environment
from dledger.errors import LogError
from dledger_broker.features.quotas.gate import QuotaGate
from dledger_broker.features.sending.dedup.idempotent import IdempotentSends
from dledger_broker.features.sending.dedup.identities import NO_ROWS, identity_of_batch, identity_seed
from dledger_broker.features.sending.dedup.remembered import write_command
from dledger_broker.features.sending.gathering import Gathering
from dledger_broker.features.sending.large_batches import LargeBatch, LargeBatches
from dledger_broker.features.sending.native_sends import NativeSends
from dledger_broker.features.sending.staging import SendStaging
from dledger_broker.features.sending.tails import BatchNeedsSlices, Complete, PreparedBatch, RecordTails, unique_key_of
from dledger_broker.features.sending.targets import SendTarget, SendTargets
from dledger_broker.features.sending.unit import PendingSend, SendUnit
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.records import MessageParts, message_sizes
from dledger_broker.kernel.requests import Read, Request, Requests
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import OutcomeUnknown, TopicNotExist
from dledger_remoting.hotpath import SendV2Fields
from dledger_remoting.record import RECORD_HEAD_BYTES

_size_of: Final = attrgetter("size")
_seed_of: Final = attrgetter("seed")
_target_of: Final = attrgetter("target")


class PlainSends:
    """Collector of checked sends, which stages the unit of a turn and has its senders answered."""

    def __init__(
        self,
        env: Environment,
        live: LiveConfig,
        counters: BrokerCounters,
        targets: SendTargets,
        tails: RecordTails,
        staging: SendStaging,
        quotas: QuotaGate,
        idempotent: IdempotentSends,
        requests: Requests,
    ) -> None:
        self._tails = tails
        self._staging = staging
        self._quotas = quotas
        self._idempotent = idempotent
        self._requests = requests
        self.native: NativeSends | None = None
        """Sends in the native part, which arrived before those that are gathered here."""
        if env.native is not None:
            self.native = NativeSends(env.native, live, counters, targets, staging, requests, self)
        self.gathering = Gathering(env, staging.in_flight.gather, self._stage, self.native)
        """The sends that are not staged yet."""
        self._last_sender = ("", "")
        self._last_seed = 0
        self._large_batches = LargeBatches(env, tails, self._add_prepared, requests.fail)

    # ---------------------------------------------------------------- a send arrives

    def take_natively(self, reads: Sequence[Read], number: int, place: int, received: float) -> tuple[int, int]:
        """Take sends as `SendRequests.take_run` does, as far as the native part takes them."""
        native = self.native
        if native is None or self.gathering.has_items:
            return number, place
        full = True
        while full:
            number, place, full = native.take(reads, number, place, received)
            if full:
                self.gathering.flush()
        return number, place

    def take(
        self,
        request: Request,
        fields: SendV2Fields,
        properties: bytes,
        target: SendTarget,
        queue_id: int,
        complete: Complete,
    ) -> None:
        """Take checked messages into the unit of this turn. Raises `RemotingError`."""
        try:
            send = self.prepare(request, fields, properties, target, queue_id, complete)
        except BatchNeedsSlices:
            self._large_batches.take(LargeBatch(request, fields, target, queue_id))
        else:
            self.gathering.add(send, send.size)

    def prepare(
        self,
        request: Request,
        fields: SendV2Fields,
        properties: bytes,
        target: SendTarget,
        queue_id: int,
        complete: Complete,
        batch: PreparedBatch | None = None,
    ) -> PendingSend:
        """Complete the messages of a send, unless they are a `batch` that was prepared in slices.

        Raises `MessageIllegal`, or `BatchNeedsSlices` for a batch with too many messages for one turn.
        """
        body = request.body
        messages: Sequence[MessageParts]
        sizes: list[int] | None = None
        seed = 0
        opted_in = target.idempotent or (fields.idempotent and target.may_be_idempotent)
        if fields.batch or request.code == RequestCode.SEND_BATCH_MESSAGE:
            unique_key = b""
            messages, with_own_keys = batch or self._tails.batch(body, target)
            sizes = message_sizes(messages)
            size = sum(sizes)
            if opted_in and with_own_keys:
                first_key = unique_key_of(messages[0][1])
                seed = identity_of_batch(first_key, identity_seed(fields.producer_group, target.topic, len(messages)))
        else:
            tail, unique_key, tag_code, has_own_key = complete(properties, target)
            messages = ((body, tail, fields.user_flag, tag_code),)
            size = RECORD_HEAD_BYTES + len(body) + len(tail)
            if opted_in and has_own_key:
                seed = self._seed_of(fields.producer_group, target.topic)
        queue = target.by_id[queue_id] or target.queue(queue_id)
        return PendingSend(request, fields, target, queue, queue_id, messages, unique_key, sizes, size, seed)

    def _seed_of(self, group: str, topic: str) -> int:
        """Return the seed of a single send's identity: as a rule that of the last send."""
        if (group, topic) != self._last_sender:
            self._last_sender, self._last_seed = (group, topic), identity_seed(group, topic)
        return self._last_seed

    def take_due(self, request: Request, fields: SendV2Fields, target: SendTarget, queue_id: int) -> None:
        """Take a message that asked for a delay, and whose time has come. Raises `RemotingError`."""
        self.take(request, fields, fields.properties.encode(), target, queue_id, self._tails.complete_anew)
        self.gathering.flush_later()

    def _add_prepared(self, large: LargeBatch, batch: PreparedBatch) -> None:
        """Take a batch that was prepared in slices."""
        complete = self._tails.complete
        send = self.prepare(large.request, large.fields, b"", large.target, large.queue_id, complete, batch)
        self.gathering.add(send, send.size)
        self.gathering.flush_later()

    def take_back(self, requests: Sequence[Request]) -> None:
        """Handle sends that arrived before all sends that are gathered here."""
        with self.gathering.before_others():
            for request in requests:
                self._requests.run(request)

    def admits_another(self, request: Request, topic: str, properties: bytes) -> bool:
        """Return whether quotas admit a send that takes another way than the sends here.

        The sends here reach the quotas first. If the time of that send's message has come, it may join them.
        """
        if self._quotas.limits((topic,)):
            self.gathering.flush()
        return self._quotas.admits(request, topic, 1, RECORD_HEAD_BYTES + len(request.body) + len(properties))

    # ---------------------------------------------------------------- the unit of a turn

    def close(self) -> None:
        """Answer all sends under way, because this node will not learn their outcome."""
        self._large_batches.close()
        self.gathering.flush()
        self._staging.in_flight.fail_all(OutcomeUnknown("this node is stopping: the message may be stored"))

    def _stage(self, pending: list[PendingSend]) -> None:
        """Stage the sends that may be stored and repeat no other send."""
        staging, idempotent = self._staging, self._idempotent
        targets = set(map(_target_of, pending))
        for target in targets:
            if staging.is_deleted(target):
                pending = self._drop_deleted_topics(pending)
                break
        opted_in = any(map(_seed_of, pending))
        if staging.limits(targets):
            pending = self._drop_unadmitted(pending, opted_in=opted_in)
        rows = NO_ROWS
        if opted_in and pending:
            pending, rows = idempotent.admit(pending)
        if not pending:
            return
        size = sum(map(_size_of, pending))
        commands = idempotent.command(rows) if rows.families else bytearray()
        remember = partial(write_command, commands, rows) if commands else None
        unit = SendUnit(pending, staging.in_flight.deadline(), self.note_applied, self._requests.fail, remember)
        try:
            begin = staging.stage(unit, size, commands)
        except LogError as error:
            for send in pending:
                self._requests.fail(send.request, error)
            return
        if commands:
            idempotent.staged(begin, rows)
        if len(targets) == 1:  # as most units
            staging.counters.sizes.count(pending[0].target.topic, size, len(pending))
        else:
            for send in pending:
                staging.counters.sizes.count(send.target.topic, send.size, 1)

    def _drop_unadmitted(self, pending: list[PendingSend], *, opted_in: bool) -> list[PendingSend]:
        """Return the sends that quotas admit. The others wait, or are or will be answered."""
        if opted_in:
            # If a quota refused a repetition of a stored send, the answer would say that nothing was stored.
            pending = self._idempotent.without_repetitions(pending)
        admits = self._quotas.admits
        return [send for send in pending if admits(send.request, send.target.topic, len(send.messages), send.size)]

    def _drop_deleted_topics(self, pending: list[PendingSend]) -> list[PendingSend]:
        """Refuse the sends whose topic was deleted since they were added, and return the other sends."""
        remaining: list[PendingSend] = []
        for send in pending:
            if self._staging.is_deleted(send.target):
                name = send.target.topic
                self._requests.fail(send.request, TopicNotExist(f"topic {name} does not exist: create it first"))
            else:
                remaining.append(send)
        return remaining

    def note_applied(self, messages: int, deadline: float) -> None:
        """Count a unit that was applied and answered."""
        staging = self._staging
        staging.counters.count_sends(messages, staging.in_flight.drop_settled(deadline))
        self.gathering.flush_later()
        self._idempotent.applied()
