"""Bugs of messages that consumers send back."""

from __future__ import annotations

import msgspec

from dledger_broker.features.delay.asked import RequestedDelay
from dledger_broker.features.locks.changes import LockChanges
from dledger_broker.features.retries import records, requests
from dledger_broker.features.retries.policies import FIRST_LEVEL, retry_delay
from dledger_broker.features.retries.requests import RetryRequests
from dledger_broker.kernel.requests import Request
from dledger_broker.kernel.units import NewRecord
from dledger_remoting.errors import SystemBusy
from dledger_remoting.record import MessageRecord
from dledger_remoting.topics import SubscriptionGroupConfig
from dledger_sim.brokers.schedules import retries
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("retries")


def _uncounted(
    record: MessageRecord, topic: str, queue_id: int, delay: RequestedDelay | None, reason: str | None = None
) -> NewRecord:
    message = _real_sent_back(record, topic, queue_id, delay, reason)
    return msgspec.structs.replace(message, reconsume_times=record.reconsume_times)


_real_sent_back = records.sent_back


def _at_a_level(
    delay_ms: int | None, level: int, reconsume_times: int, group: SubscriptionGroupConfig, max_delay_s: int
) -> RequestedDelay:
    return _real_delay(delay_ms, level or FIRST_LEVEL + reconsume_times, reconsume_times, group, max_delay_s)


_real_delay = retry_delay


CATALOGUE.add(
    "retried-for-ever",
    "a message that was sent back too often becomes a dead letter",
    (requests, "sent_back", _uncounted),
    schedule=retries.message_that_comes_again_and_is_a_dead_letter_then,
)

CATALOGUE.add(
    "origin-of-the-last-delivery",
    "a redelivered message has the id of the original message",
    (records, "find_property", lambda _properties, _name: None),
    schedule=retries.message_that_comes_again_and_is_a_dead_letter_then,
)


CATALOGUE.add(
    "retry-policy-ignored",
    "a redelivery waits as long as the retry policy of its group says",
    (requests, "retry_delay", _at_a_level),
    schedule=retries.message_that_waits_as_its_group_says,
)

CATALOGUE.add(
    "orderly-groups-retry",
    "a message that a group in order gives up becomes a dead letter",
    (LockChanges, "holds_any", lambda _self, _group: False),
    schedule=retries.message_that_an_orderly_consumer_gives_up,
)

CATALOGUE.add(
    "sent-back-answered-when-staged",
    "a send-back is acknowledged once a majority has it",
    (RetryRequests, "_wait", lambda _self, request: request.respond()),
)


def _refuse(self: RetryRequests, request: Request) -> None:
    del self._waiting[request]
    self._requests.fail(request, SystemBusy("no majority stored the message in time"))


CATALOGUE.add(
    "sent-back-refused-when-late",
    "a send-back that was staged and not stored in time has an unknown outcome: it is not refused",
    (RetryRequests, "_timed_out", _refuse),
    schedule=retries.message_that_a_majority_stores_late,
)
