"""Judge of long polls on a node: no poll waits for messages that exist, or for messages that can never come.

- A long poll whose message is applied is answered in the same turn of the event loop.
- A poll whose queue is gone with its topic, or whose state was replaced, is answered in the same turn.
- A poll on a node that has stopped leading, or that is about to stop, is answered at once.
- No poll waits longer than its client's time limit. Before that no poll is answered as empty, except for one of the
  reasons above.
- No poll is told to ask again if it may wait longer.
"""

# ruff: noqa: SLF001 - watches private names

from __future__ import annotations

from typing import Final, NamedTuple

from dledger_broker.features.pulling.limits import MAX_SUSPEND_S
from dledger_broker.features.pulling.longpoll import HeldPull
from dledger_broker.features.pulling.requests import PullRequests
from dledger_broker.kernel.leadership import LeadershipView
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
from dledger_sim.brokers.truth import Truth
from dledger_sim.log.group import Life
from dledger_sim.log.invariants import require
from dledger_sim.log.scheduler import Scheduler

LATE_S: Final = 0.5
"""Tolerance in seconds between the deadline by another clock and the answer."""
CLOCK_ERROR: Final = 1.1
"""Maximum ratio of a simulated node's seconds to simulated seconds."""
ROUNDING_S: Final = 1e-6


class _Poll(NamedTuple):
    since: float
    """Begin of the wait in simulated seconds, or by the node's own clock if that is ahead."""
    for_s: float
    term: int
    """Term in which this node led and was ready when the poll began; 0 if it did not lead."""


class Waiting:
    """Long polls of one life of a node."""

    def __init__(self, life: Life, scheduler: Scheduler, machine: BrokerMachine, truth: Truth) -> None:
        self._life = life
        self._scheduler = scheduler
        self._machine = machine
        self._truth = truth
        self._polls: dict[HeldPull, _Poll] = {}
        self._pulls: PullRequests | None = None
        self._group: LeadershipView | None = None
        self._last_empty_answer: tuple[Request, int] | None = None
        """Last pull that got no message, and the code of its answer."""
        self._last_term = 0
        """Term in which the node led and was ready after the last event."""

    def watch(self, pulls: PullRequests, group: LeadershipView) -> None:
        """Watch the polls of a processor."""
        self._pulls, self._group = pulls, group
        self._watch_held(pulls)
        conclude, answer_nothing = pulls._conclude, pulls.answers.nothing

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
            self._last_empty_answer = request, code
            answer_nothing(request, fields, code, next_begin, result)

        pulls._conclude = concluded  # type: ignore[method-assign]
        pulls.answers.nothing = told  # type: ignore[method-assign]

    def _watch_held(self, pulls: PullRequests) -> None:
        held = pulls.held
        hold, retry, expire = held.hold, held._retry, held._expire

        def held_now(pull: HeldPull) -> None:
            self._truth.happened["poll held"] += 1
            since = self._scheduler.now + self._life.environment.ahead_s
            self._polls[pull] = _Poll(since, pull.fields.suspend_timeout_millis / 1000, self._leading_term)
            hold(pull)

        def tried(pull: HeldPull) -> bool:
            may_wait = self._may_keep_waiting(pull)
            ended = retry(pull)
            if ended:
                self._end_poll(pull)
                again = self._last_empty_answer == (pull.request, ResponseCode.PULL_RETRY_IMMEDIATELY)
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
            self._end_poll(pull)

        held.hold = held_now  # type: ignore[method-assign]
        held._retry, held._expire = tried, expired

    def _end_poll(self, pull: HeldPull) -> None:
        poll = self._polls.pop(pull, None)
        if poll is not None:
            self._check_end(pull.request, pull.fields, pull.queue)

    def _check_end(self, request: Request, fields: PullFields, queue: QueueState) -> None:
        """Check a pull that was answered as empty: its wait must have ended."""
        if self._last_empty_answer != (request, ResponseCode.PULL_NOT_FOUND) or not request.origin.is_open:
            return
        assert self._pulls is not None
        patience_s = min(fields.suspend_timeout_millis / 1000, MAX_SUSPEND_S)
        require(
            self._life.environment.now() >= request.received + patience_s - ROUNDING_S
            or queue.dropped
            or self._last_term not in {0, self._leading_term}
            or not self._pulls.accepts_waiting
            or fields.consumer_group in self._truth.restless,
            "a long poll waits until its client's time limit if nothing arrives",
            node=self._life.node.name,
            queue=queue,
            asked=fields.queue_offset,
            received=request.received,
            patience_s=patience_s,
        )

    def _may_keep_waiting(self, pull: HeldPull) -> bool:
        """Return whether all messages that a poll could get can be read at once."""
        queue, view = pull.queue, pull.queue.view
        in_memory = max(queue.min_offset, view.tail_start) <= pull.offset <= queue.max_offset == view.end
        return in_memory and not queue.dropped

    @property
    def _leading_term(self) -> int:
        return self._group.term if self._group is not None and self._group.ready else 0

    def check(self) -> None:
        """Raise `Violation` if a poll should have ended. Call this after everything that may end a poll."""
        if self._pulls is None:
            return
        self._last_term = self._leading_term
        awake_since = self._life.environment.paused_until
        for pull, poll in list(self._polls.items()):
            if not pull.request.origin.is_open:
                del self._polls[pull]
                continue
            facts = {"node": self._life.node.name, "queue": pull.queue, "offset": pull.offset, "since": poll.since}
            require(not pull.queue.dropped, "no long poll waits at a deleted queue", **facts)
            require(
                self._find_wanted_message(pull) is None, "a long poll is woken by a message that it waits for", **facts
            )
            require(
                poll.term in {0, self._leading_term},
                "a node that stops leading ends the long polls that wait there",
                **facts,
            )
            require(
                self._pulls.accepts_waiting, "a node that is about to stop ends the long polls that wait there", **facts
            )
            late = self._scheduler.now - max(poll.since + poll.for_s * CLOCK_ERROR, awake_since) - LATE_S
            require(late < 0, "a long poll ends at its client's time limit", late=late, **facts)

    def _find_wanted_message(self, pull: HeldPull) -> Stored | None:
        """Return a message that a poll waits for and that is applied here, or None."""
        queue = pull.queue
        topic = self._machine.state.topics[queue.topic]
        codes = codes_of(pull.message_filter)
        incarnation = self._truth.expected.incarnations[queue.topic, topic.created_position]
        return incarnation.skipped(queue.queue_id, pull.offset, queue.next_offset, codes)
