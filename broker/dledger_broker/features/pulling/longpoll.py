"""Pulls that wait for messages. Messages of their queue wake them, and their deadline ends the wait."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable
from typing import Final

from dledger.environment import Cancellable, Environment
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.requests import Request, Waits
from dledger_remoting.filters.subscriptions import MessageFilter
from dledger_remoting.hotpath import PullFields

_SPARE: Final = 1_024
"""Number by which stale deadlines must exceed the waiting pulls before the heap of deadlines is cleaned."""


class HeldPull:
    """Pull that waits.

    `offset` moves on past messages that its filter rejects. Without a filter, all messages match.
    """

    __slots__ = ("deadline", "fields", "is_done", "message_filter", "offset", "queue", "request")

    def __init__(
        self,
        request: Request,
        fields: PullFields,
        queue: QueueState,
        offset: int,
        message_filter: MessageFilter | None,
        deadline: float,
    ) -> None:
        self.request = request
        self.fields = fields
        self.queue = queue
        self.offset = offset
        self.message_filter = message_filter
        self.deadline = deadline
        self.is_done = False


class LongPolls:
    """All waiting pulls of a node.

    - `retry(pull)` searches for messages again, and returns True if it answered.
    - `expire(pull)` answers that no message has arrived.
    - `changed()` is called when the first pull begins to wait and when the last wait has ended.
    """

    def __init__(
        self,
        env: Environment,
        memory: Waits,
        retry: Callable[[HeldPull], bool],
        expire: Callable[[HeldPull], None],
        changed: Callable[[], None],
    ) -> None:
        self._env = env
        self._memory = memory
        self._retry = retry
        self._expire = expire
        self._changed = changed
        self._by_queue: dict[QueueState, list[HeldPull]] = {}
        self._by_group: dict[str, dict[HeldPull, None]] = {}
        """Waiting pulls by consumer group. Thousands of groups may change at once, and each has few of the pulls."""
        self._deadlines: list[tuple[float, int, HeldPull]] = []
        self._serial = 0
        self._waiting = 0
        self._timer: Cancellable | None = None
        self._timer_at = 0.0

    def __len__(self) -> int:
        return self._waiting

    def hold(self, pull: HeldPull) -> None:
        """Let a pull wait until its deadline."""
        self._memory.begin_wait(pull.request)
        self._waiting += 1
        self._by_queue.setdefault(pull.queue, []).append(pull)
        self._by_group.setdefault(pull.fields.consumer_group, {})[pull] = None
        self._serial += 1
        heapq.heappush(self._deadlines, (pull.deadline, self._serial, pull))
        self._arm()
        if self._waiting == 1:
            self._changed()

    def arrived(self, queues: Iterable[QueueState]) -> None:
        """Search again for messages for the pulls that wait in these queues. A queue may be named more than once."""
        by_queue = self._by_queue
        if not by_queue:
            return
        for queue in dict.fromkeys(queues):
            pulls = by_queue.pop(queue, None)
            if pulls is None:
                continue
            kept = [pull for pull in pulls if not self._try(pull)]
            if kept:
                by_queue.setdefault(queue, []).extend(kept)
        self._compact()

    def release_all(self) -> None:
        """Answer every pull now, because the leadership changed or this node is leaving."""
        self._release([pull for pulls in self._by_queue.values() for pull in pulls])

    def release_groups(self, groups: set[str]) -> None:
        """Answer the pulls of these consumer groups."""
        self._release([pull for group in sorted(groups) for pull in self._by_group.get(group, ())])

    def release_queues(self, keys: Container[tuple[str, str, int]]) -> None:
        """Answer the pulls of groups in queues, each given as (group, topic, queue id)."""
        pulls = (pull for pulls in self._by_queue.values() for pull in pulls)
        self._release(
            [pull for pull in pulls if (pull.fields.consumer_group, pull.fields.topic, pull.fields.queue_id) in keys]
        )

    def release_dropped(self) -> None:
        """Answer the pulls of queues whose topic was deleted."""
        self._release([pull for queue, pulls in self._by_queue.items() if queue.dropped for pull in pulls])

    def _release(self, pulls: list[HeldPull]) -> None:
        for pull in pulls:
            self._remove(pull)
            self._end(pull)
            self._expire(pull)
        self._compact()

    def _try(self, pull: HeldPull) -> bool:
        """Search again for messages for a pull, and return whether its wait has ended."""
        if not pull.request.origin.is_open:
            self._end(pull)
            return True
        self._end(pull)
        if self._retry(pull):
            return True
        self._resume(pull)
        return False

    def _end(self, pull: HeldPull) -> None:
        """End the wait of a pull, whose request is in flight again."""
        pull.is_done = True
        group = self._by_group[pull.fields.consumer_group]
        del group[pull]
        if not group:
            del self._by_group[pull.fields.consumer_group]
        self._memory.end_wait(pull.request)
        self._waiting -= 1
        if self._waiting == 0:
            self._changed()

    def _resume(self, pull: HeldPull) -> None:
        pull.is_done = False
        self._by_group.setdefault(pull.fields.consumer_group, {})[pull] = None
        self._memory.begin_wait(pull.request)
        self._waiting += 1

    def _remove(self, pull: HeldPull) -> None:
        pulls = self._by_queue.get(pull.queue)
        if pulls is not None:
            pulls.remove(pull)
            if not pulls:
                del self._by_queue[pull.queue]

    def _compact(self) -> None:
        if len(self._deadlines) > 2 * self._waiting + _SPARE:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].is_done]
            heapq.heapify(self._deadlines)

    def _arm(self) -> None:
        deadlines = self._deadlines
        if not deadlines:
            return
        if self._timer is not None:
            if self._timer_at <= deadlines[0][0]:
                return
            self._timer.cancel()
        self._timer_at = deadlines[0][0]
        self._timer = self._env.call_later(max(0.0, self._timer_at - self._env.now()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._env.now()
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].is_done):
            _, _, pull = heapq.heappop(self._deadlines)
            if not pull.is_done:
                self._remove(pull)
                self._end(pull)
                if pull.request.origin.is_open:
                    self._expire(pull)
        self._arm()
