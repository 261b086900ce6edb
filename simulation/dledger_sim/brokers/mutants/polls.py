"""Bugs of long polls. A poll must be woken by the messages that it waits for, and must not be answered earlier."""

# ruff: noqa: SLF001 - patches private names

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from dledger_broker.features.pulling.longpoll import HeldPull, LongPolls
from dledger_broker.features.pulling.requests import PullRequests
from dledger_broker.kernel.queues import QueueState
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("broker")

# ---------------------------------------------------------------- polls that are not woken


CATALOGUE.add(
    "polls-never-woken",
    "an arrival wakes a long poll",
    (LongPolls, "arrived", lambda _self, _queues: None),
)


def _wake_the_first_poll(self: LongPolls, queues: Iterable[QueueState]) -> None:
    for queue in dict.fromkeys(queues):
        others = self._by_queue.get(queue, [])[1:]
        del self._by_queue.get(queue, [])[1:]
        _real_arrived(self, (queue,))
        if others:
            self._by_queue.setdefault(queue, []).extend(others)


_real_arrived = LongPolls.arrived

CATALOGUE.add(
    "first-poll-of-a-queue-woken",
    "an arrival wakes all long polls at its queue",
    (LongPolls, "arrived", _wake_the_first_poll),
)


def _wake_at_the_first_queue(self: LongPolls, queues: Iterable[QueueState]) -> None:
    _real_arrived(self, list(islice(queues, 1)))


CATALOGUE.add(
    "first-queue-of-a-batch-woken",
    "a batch wakes the long polls at all queues that got messages",
    (LongPolls, "arrived", _wake_at_the_first_queue),
)


def _forget_who_goes_on_waiting(self: LongPolls, queues: Iterable[QueueState]) -> None:
    for queue in dict.fromkeys(queues):
        for pull in self._by_queue.pop(queue, ()):
            self._try(pull)


CATALOGUE.add(
    "poll-tried-once",
    "a long poll that got nothing from an arrival is woken by the next arrival",
    (LongPolls, "arrived", _forget_who_goes_on_waiting),
)


CATALOGUE.add(
    "poll-at-a-deleted-topic-kept",
    "no long poll waits at a queue that is gone with its topic",
    (LongPolls, "release_dropped", lambda _self: None),
)


CATALOGUE.add(
    "polls-kept-at-step-down",
    "a node that stops leading ends the long polls that wait there",
    (PullRequests, "leader_changed", lambda _self: None),
)


def _hold_no_more(self: PullRequests) -> None:
    self.accepts_waiting = False


CATALOGUE.add(
    "polls-kept-when-leaving",
    "a node that is about to stop ends the long polls that wait there",
    (PullRequests, "release", _hold_no_more),
)

# ---------------------------------------------------------------- polls that are answered too early or too late


def _answer_at_any_arrival(self: PullRequests, pull: HeldPull) -> bool:
    if not _real_retry(self, pull):
        self._expire(pull)
    return True


_real_retry = PullRequests._retry

CATALOGUE.add(
    "poll-answered-by-any-arrival",
    "a long poll is answered by messages that match its filter, not by other messages",
    (PullRequests, "_retry", _answer_at_any_arrival),
)


def _arm_once(self: LongPolls) -> None:
    if self._timer is None:
        _real_arm(self)


_real_arm = LongPolls._arm

CATALOGUE.add(
    "later-poll-waits-for-an-earlier-one",
    "a long poll ends at its client's time limit, even if other polls wait longer",
    (LongPolls, "_arm", _arm_once),
)


def _end_all_that_wait(self: LongPolls) -> None:
    self._deadlines = [(0.0, serial, pull) for _, serial, pull in self._deadlines]
    _real_on_timer(self)


_real_on_timer = LongPolls._on_timer

CATALOGUE.add(
    "first-deadline-ends-all",
    "if nothing arrives, a long poll waits until its client's time limit",
    (LongPolls, "_on_timer", _end_all_that_wait),
)
