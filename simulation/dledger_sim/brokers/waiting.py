"""Waiting for messages on a node: nobody waits for what is there, or for what will never come.

- A long poll whose message is applied is answered in the same turn of the event loop.
- One whose queue is gone with its topic, or whose state was replaced, is answered in the turn in which that happens.
- One on a node that led and leads no more, or that is about to stop, is answered at once.
- None waits longer than its client said, and none is told that there is nothing before that, unless for one of the
  reasons above; nor is one sent to ask again where it may go on waiting.
"""

# ruff: noqa: SLF001 - what is watched is what is private

from __future__ import annotations

from typing import Final, NamedTuple

from dledger_broker.features.pulling.limits import MAX_SUSPEND_S
from dledger_broker.features.pulling.longpoll import HeldPull
from dledger_broker.features.pulling.requests import PullRequests
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.requests import Request
from dledger_broker.views.reading import GetResult
from dledger_remoting.codes import ResponseCode
from dledger_remoting.filters.subscriptions import MessageFilter
from dledger_remoting.headers_consume import PULL_SUSPEND
from dledger_remoting.hotpath import PullFields
from dledger_sim.brokers.expected import Stored
from dledger_sim.brokers.filters import codes_of
from dledger_sim.brokers.reset_truth import GROUPS as RESET_GROUPS
from dledger_sim.brokers.truth import Truth
from dledger_sim.log.group import Life
from dledger_sim.log.invariants import require
from dledger_sim.log.scheduler import Scheduler

LATE_S: Final = 0.5
"""A deadline may pass so much earlier, by another clock, than its poll is answered."""
CLOCK_ERROR: Final = 1.1
"""A node's seconds are so much longer at most."""
ROUNDING_S: Final = 1e-6


class _Poll(NamedTuple):
    since: float
    """When it began to wait, simulated seconds, by the node's own clock if that is ahead."""
    for_s: float
    term: int
    """In which this node led and was ready when it began; 0 if it did not."""


class Waiting:
    """The long polls of one life of a node."""

    def __init__(self, life: Life, scheduler: Scheduler, machine: BrokerMachine, truth: Truth) -> None:
        self._life = life
        self._scheduler = scheduler
        self._machine = machine
        self._truth = truth
        self._polls: dict[HeldPull, _Poll] = {}
        self._pulls: PullRequests | None = None
        self._group: Group | None = None
        self._told: tuple[Request, int] | None = None
        """The last pull that got no message, and the code of its answer."""
        self._led_last = 0
        """The term in which the node led, and was ready, after the last event."""

    def watch(self, pulls: PullRequests, group: Group) -> None:
        """Follow the polls of a processor."""
        self._pulls, self._group = pulls, group
        self._watch_held(pulls)
        conclude, answer_nothing = pulls._conclude, pulls._answer_nothing

        def concluded(
            request: Request,
            fields: PullFields,
            queue: QueueState,
            message_filter: MessageFilter | None,
            result: GetResult,
        ) -> None:
            conclude(request, fields, queue, message_filter, result)
            if fields.sys_flag & PULL_SUSPEND and fields.suspend_timeout_millis > 0:
                self._check_end(request, fields, queue)

        def told(request: Request, fields: PullFields, code: int, next_begin: int, result: GetResult) -> None:
            self._told = request, code
            answer_nothing(request, fields, code, next_begin, result)

        pulls._conclude = concluded  # type: ignore[method-assign]
        pulls._answer_nothing = told  # type: ignore[method-assign]

    def _watch_held(self, pulls: PullRequests) -> None:
        held = pulls.held
        hold, retry, expire = held.hold, held._retry, held._expire

        def held_now(pull: HeldPull) -> None:
            self._truth.happened["poll held"] += 1
            since = self._scheduler.now + self._life.environment.ahead_s
            self._polls[pull] = _Poll(since, pull.fields.suspend_timeout_millis / 1000, self._led)
            hold(pull)

        def tried(pull: HeldPull) -> bool:
            may_wait = self._may_go_on_waiting(pull)
            ended = retry(pull)
            if ended:
                self._end(pull)
                again = self._told == (pull.request, ResponseCode.PULL_RETRY_IMMEDIATELY)
                require(
                    not (again and may_wait),
                    "a long poll is not told to ask again while it may wait",
                    queue=pull.queue,
                    offset=pull.offset,
                )
                self._truth.happened["poll woken"] += 1
            return ended

        def expired(pull: HeldPull) -> None:
            expire(pull)
            self._end(pull)

        held.hold = held_now  # type: ignore[method-assign]
        held._retry, held._expire = tried, expired

    def _end(self, pull: HeldPull) -> None:
        poll = self._polls.pop(pull, None)
        if poll is not None:
            self._check_end(pull.request, pull.fields, pull.queue)

    def _check_end(self, request: Request, fields: PullFields, queue: QueueState) -> None:
        """A pull that may wait was told that there is nothing: was it time to?"""
        if self._told != (request, ResponseCode.PULL_NOT_FOUND) or not request.origin.is_open:
            return
        assert self._pulls is not None
        patience_s = min(fields.suspend_timeout_millis / 1000, MAX_SUSPEND_S)
        require(
            self._life.environment.now() >= request.received + patience_s - ROUNDING_S
            or queue.dropped
            or self._led_last not in {0, self._led}
            or not self._pulls.accepts_waiting
            or fields.consumer_group in RESET_GROUPS,  # what waits in a queue that is reset is to come again
            "a long poll waits as long as its client said if nothing comes",
            node=self._life.node.name,
            queue=queue,
            asked=fields.queue_offset,
            received=request.received,
            patience_s=patience_s,
        )

    def _may_go_on_waiting(self, pull: HeldPull) -> bool:
        """Whether all of the queue that a poll may get something of can be read at once."""
        queue, view = pull.queue, pull.queue.view
        in_memory = max(queue.min_offset, view.tail_start) <= pull.offset <= queue.max_offset == view.end
        return in_memory and not queue.dropped

    @property
    def _led(self) -> int:
        return self._group.term if self._group is not None and self._group.ready else 0

    def check(self) -> None:
        """Raise `Violation` if somebody waits who should not; called after everything that may end a poll."""
        if self._pulls is None:
            return
        self._led_last = self._led
        awake_since = self._life.environment.paused_until
        for pull, poll in list(self._polls.items()):
            if not pull.request.origin.is_open:
                del self._polls[pull]
                continue
            facts = {"node": self._life.node.name, "queue": pull.queue, "offset": pull.offset, "since": poll.since}
            require(not pull.queue.dropped, "no long poll waits for a queue that is gone", **facts)
            require(self._wanted(pull) is None, "a long poll is woken by what it waits for", **facts)
            require(poll.term in {0, self._led}, "a node that leads no more lets those go who wait there", **facts)
            require(self._pulls.accepts_waiting, "a node that is about to stop lets those go who wait there", **facts)
            late = self._scheduler.now - max(poll.since + poll.for_s * CLOCK_ERROR, awake_since) - LATE_S
            require(late < 0, "a long poll ends when its client said", late=late, **facts)

    def _wanted(self, pull: HeldPull) -> Stored | None:
        """A message that a poll waits for and that is applied here."""
        queue = pull.queue
        topic = self._machine.state.topics[queue.topic]
        codes = codes_of(pull.message_filter)
        incarnation = self._truth.expected.incarnations[queue.topic, topic.created_position]
        return incarnation.skipped(queue.queue_id, pull.offset, queue.next_offset, codes)
