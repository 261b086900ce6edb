"""Confirmations (20021): popped messages have reached their client, whose lease hides them from now on.

The answer is 0 once the lease is in the log, and 208 if all deliveries are over. A confirmation may be repeated, and
may come late or never:

- Repeated: deliveries that are leased already stay as they are.
- Behind an acknowledgement: what is left of the delivery is leased.
- Behind the end of the invisible time: the messages come again, or have done so. The confirmation has no effect.
- Beside the end of the invisible time: see `LeaseTimes.confirming`. Without that the leader could propose to deliver
  messages again while their lease is on its way to a majority.
- At a new leader: it has the deliveries, because they are replicated, and it delivers none again in its first seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from dledger.errors import LogError, NotLeaderError
from dledger_broker.features.confirmations.commands import NAME, ConfirmLease, DeliveryRow
from dledger_broker.features.leases.requests import Confirming
from dledger_broker.features.leases.table import MAX_LENGTH_MS, lease_owner
from dledger_broker.features.leases.times import LeaseTimes
from dledger_broker.features.pop.acks import MIN_INVISIBLE_MS
from dledger_broker.features.pop.commands import PopQueueKey
from dledger_broker.features.pop.deliveries import Delivery
from dledger_broker.features.pop.table import POPPED
from dledger_broker.kernel import rights
from dledger_broker.kernel.group_clock import GroupClock
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, Needs, Route
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.headers import decode_ext
from dledger_remoting.headers_pop import ConfirmLeaseHeader
from dledger_remoting.pop import Retry, parse_deliveries_info, pop_retry_topic

MAX_DELIVERIES: Final = 50
"""Maximum number of deliveries that one request confirms. With the longest names they fit into the smallest segment."""

_CONFIRMING: Final = (rights.group("consumerGroup", Action.SUB), rights.topic("topic", Action.SUB))


class ConfirmationRequests(Part, Confirming):
    """Part that begins leases of deliveries, on the leader."""

    def __init__(self, machine: BrokerMachine, clock: GroupClock, requests: Requests, times: LeaseTimes) -> None:
        self._machine = machine
        self._clock = clock
        self._requests = requests
        self._times = times

    @property
    def routes(self) -> Mapping[int, Route]:
        return {RequestCode.CONFIRM_LEASE: Route(self.confirm, Needs.LEADER, CHANGES, rights=_CONFIRMING)}

    def is_active(self) -> bool:
        return self._machine.is_active(NAME)

    def confirm(self, request: Request) -> None:
        """Begin the lease of deliveries (20021)."""
        header = decode_ext(ConfirmLeaseHeader, request.ext)
        owner, length_ms = lease_owner(header.client_id, request.account), header.invisible_time
        if not MIN_INVISIBLE_MS <= length_ms <= MAX_LENGTH_MS:
            raise InvalidParameter(f"invisibleTime {length_ms} is outside {MIN_INVISIBLE_MS}..{MAX_LENGTH_MS} ms")
        rows = header.deliveries.count(";") + bool(header.deliveries)  # counted first: a header may have megabytes
        if not 1 <= rows <= MAX_DELIVERIES:
            raise InvalidParameter(f"deliveries: {rows} rows, expected 1 to {MAX_DELIVERIES}")
        named = parse_deliveries_info(header.deliveries)
        now_ms = self._clock.delay_base_ms()
        if now_ms is None:
            self._clock.hold(request, self._requests)
            return
        found = dict(self._find(header, named))
        if not found:
            why = "none of these deliveries is open: their messages are acknowledged, or come again"
            self._requests.when_confirmed(request, partial(request.respond, ResponseCode.NO_MESSAGE, why))
            return
        unleased = tuple(row for row, delivery in found.items() if not delivery.client)
        if not unleased:
            self._requests.when_confirmed(request, request.respond)
            return
        command = ConfirmLease(owner, header.consumer_group, now_ms + length_ms, length_ms, unleased)
        self._propose(request, command, [found[row] for row in unleased])

    def _find(
        self, header: ConfirmLeaseHeader, named: Sequence[tuple[Retry, int, int]]
    ) -> Iterator[tuple[DeliveryRow, Delivery]]:
        """Yield the deliveries that have open messages."""
        table, group = self._machine.state.table(POPPED), header.consumer_group
        for retry, queue_id, pop_time_ms in named:
            name = pop_retry_topic(group, header.topic, retry)
            topic, delivery = self._machine.topic(name), table.delivery(PopQueueKey(group, name, queue_id), pop_time_ms)
            if topic is not None and delivery is not None:
                yield DeliveryRow(name, topic.created_position, queue_id, pop_time_ms), delivery

    def _propose(self, request: Request, command: ConfirmLease, deliveries: Sequence[Delivery]) -> None:
        times = self._times
        times.confirming.update(deliveries)

        def done(error: LogError | None) -> None:
            times.confirming.subtract(deliveries)
            times.confirming = +times.confirming
            if error is None:
                request.respond()
            else:
                self._requests.fail(request, error)

        try:
            privileged = self._machine.overlay.may_use_reserve
        except NotLeaderError as error:
            done(error)
            return
        self._machine.stage_command(command, done, privileged=privileged)
