"""Bugs of long polls: who waits is woken by what it waits for, and answered then and not before."""

# ruff: noqa: SLF001 - what is patched is what is private

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from dledger_broker.features.pulling.longpoll import HeldPull, LongPolls
from dledger_broker.features.pulling.requests import PullRequests
from dledger_broker.kernel.queues import QueueState
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("broker")

# ---------------------------------------------------------------- who is not woken


CATALOGUE.add(
    "polls-never-woken",
    "a long poll is woken by an arrival",
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
    "an arrival wakes everybody who waits at its queue",
    (LongPolls, "arrived", _wake_the_first_poll),
)


def _wake_at_the_first_queue(self: LongPolls, queues: Iterable[QueueState]) -> None:
    _real_arrived(self, list(islice(queues, 1)))


CATALOGUE.add(
    "first-queue-of-a-batch-woken",
    "everybody is woken who waits at any of the queues that got messages",
    (LongPolls, "arrived", _wake_at_the_first_queue),
)


def _forget_who_goes_on_waiting(self: LongPolls, queues: Iterable[QueueState]) -> None:
    for queue in dict.fromkeys(queues):
        for pull in self._by_queue.pop(queue, ()):
            self._try(pull)


CATALOGUE.add(
    "poll-tried-once",
    "who got nothing out of an arrival is woken by the next one",
    (LongPolls, "arrived", _forget_who_goes_on_waiting),
)


CATALOGUE.add(
    "poll-at-a-deleted-topic-kept",
    "nobody waits at a queue that is gone with its topic",
    (LongPolls, "release_dropped", lambda _self: None),
)


CATALOGUE.add(
    "polls-kept-at-step-down",
    "a node that leads no more lets those go who wait there",
    (PullRequests, "_on_leadership", lambda _self: None),
)


def _hold_no_more(self: PullRequests) -> None:
    self.accepts_waiting = False


CATALOGUE.add(
    "polls-kept-when-leaving",
    "a node that is about to stop lets those go who wait there",
    (PullRequests, "release", _hold_no_more),
)

# ---------------------------------------------------------------- who is answered too early, or too late


def _answer_at_any_arrival(self: PullRequests, pull: HeldPull) -> bool:
    if not _real_retry(self, pull):
        self._expire(pull)
    return True


_real_retry = PullRequests._retry

CATALOGUE.add(
    "poll-answered-by-any-arrival",
    "a long poll is answered by what its filter lets through, not by what it rejects",
    (PullRequests, "_retry", _answer_at_any_arrival),
)


def _arm_once(self: LongPolls) -> None:
    if self._timer is None:
        _real_arm(self)


_real_arm = LongPolls._arm

CATALOGUE.add(
    "later-poll-waits-for-an-earlier-one",
    "a long poll ends when its client said, whoever waits longer",
    (LongPolls, "_arm", _arm_once),
)


def _end_all_that_wait(self: LongPolls) -> None:
    self._deadlines = [(0.0, serial, pull) for _, serial, pull in self._deadlines]
    _real_on_timer(self)


_real_on_timer = LongPolls._on_timer

CATALOGUE.add(
    "first-deadline-ends-all",
    "a long poll waits as long as its client said, if nothing comes",
    (LongPolls, "_on_timer", _end_all_that_wait),
)
