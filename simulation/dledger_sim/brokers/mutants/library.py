"""Bugs of our client library."""

from __future__ import annotations

from dledger_client.consuming import fetcher
from dledger_client.consuming.assignments import Assignments
from dledger_client.consuming.fetcher import QueueFetcher
from dledger_client.consuming.locks import QueueLocks
from dledger_client.consuming.progress import QueueProgress
from dledger_client.consuming.retries import RetrySender
from dledger_client.messages import MessageQueue
from dledger_sim.brokers.library.scenario import NAME
from dledger_sim.brokers.schedules import library
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue(NAME)

CATALOGUE.add(
    "work-without-the-lock",
    "a client works on a queue, and commits its offset, only while it holds the queue's lock",
    (Assignments, "may_work_on", lambda _self, _fetcher: True),
    schedule=library.member_that_is_cut_off_for_longer_than_its_lock,
)

CATALOGUE.add(
    "lock-renewed-without-its-queue",
    "the lock of a queue that was given up ends, even if its offset could not be committed",
    (QueueLocks, "let_end", lambda _self, _queue: None),
    schedule=library.lock_of_a_queue_whose_offset_could_not_be_committed,
)


async def _wait_for_nothing(_self: Assignments, _queue: MessageQueue) -> None:
    pass


CATALOGUE.add(
    "lock-given-up-under-work",
    "the lock of a queue is given up once no message of the queue is being handled",
    (Assignments, "finish_before_release", _wait_for_nothing),
)

CATALOGUE.add(
    "queue-read-again-under-work",
    "a queue that is read in order is read again once no message of the queue is being handled",
    (Assignments, "finish_before_reading", _wait_for_nothing),
)

CATALOGUE.add(
    "queue-read-on-after-its-share-is-lost",
    "a member reads nothing more of a queue that is no longer its own",
    (QueueFetcher, "revoke", lambda _self: None),
)

CATALOGUE.add(
    "failed-pull-repeated-at-once",
    "a pull that fails is repeated after a pause",
    (fetcher, "failure_pause_seconds", lambda _failures: 0.0),
)


async def _believe_it_is_given_back(*_arguments: object, **_options: object) -> bool:
    return True


CATALOGUE.add(
    "give-back-not-waited-for",
    "a failed message is done once its copy is stored",
    (RetrySender, "give_back", _believe_it_is_given_back),
)

CATALOGUE.add(
    "offsets-committed-ahead-of-work",
    "an offset is committed once all messages below it are done",
    (QueueProgress, "committable", property(lambda self: self.next_offset)),
)
