"""Pops, and questions whether there is anything to pop, that wait for messages: each until its deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from dledger.environment import Cancellable, Environment
from dledger_broker.kernel.requests import Request


class PopWait(NamedTuple):
    """What a request waits for. `queue_id` is -1 for any queue; `topics` are those in which a message may come."""

    group: str
    topic: str
    queue_id: int
    topics: tuple[str, ...]
    has_filter: bool


class HeldPop:
    """A request that waits."""

    __slots__ = ("expire", "request", "timer", "wait")

    def __init__(self, request: Request, wait: PopWait, expire: Callable[[], None]) -> None:
        self.request = request
        self.wait = wait
        self.expire = expire
        self.timer: Cancellable | None = None


class HeldPops:
    """All waiting pops of a node. `run` has a request handled again, which may hold it once more."""

    def __init__(self, env: Environment, run: Callable[[Request], None]) -> None:
        self._env = env
        self._run = run
        self._by_topic: dict[str, dict[HeldPop, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def count_of(self, group: str, topic: str, queue_id: int) -> int:
        """How many wait for a queue of a topic, or with -1 for any."""
        return sum(held.wait[:3] == (group, topic, queue_id) for held in self._by_topic.get(topic, ()))

    def hold(self, request: Request, wait: PopWait, deadline: float, expire: Callable[[], None]) -> None:
        """Let a request wait; `expire` answers it at its deadline."""
        held = HeldPop(request, wait, expire)
        request.origin.begin_wait()
        self._count += 1
        for topic in wait.topics:
            self._by_topic.setdefault(topic, {})[held] = None
        held.timer = self._env.call_later(max(0.0, deadline - self._env.now()), partial(self._expired, held))

    def arrived(self, topics: Iterable[str]) -> None:
        """Something may be there to be popped in these topics; one may be named more than once.

        Those that wait for the same are asked one by one, until one of them goes on waiting: then there is no more.
        """
        if not self._by_topic:
            return
        for topic in dict.fromkeys(topics):
            nothing: set[PopWait] = set()
            for held in list(self._by_topic.get(topic, ())):
                if held.timer is None or held.wait in nothing:
                    continue
                before = self._count
                self._end(held)
                if held.request.origin.is_open:
                    self._run(held.request)
                    if self._count == before and not held.wait.has_filter:
                        nothing.add(held.wait)

    def release_all(self) -> None:
        """Answer every one now: leadership changed, or this node is leaving."""
        self._release(held for waiting in list(self._by_topic.values()) for held in list(waiting))

    def look_again(self, concerns: Callable[[PopWait], bool]) -> None:
        """Handle those anew that something has happened to: their topic or group may be gone."""
        for held in [held for waiting in self._by_topic.values() for held in waiting]:
            if held.timer is not None and concerns(held.wait):
                self._end(held)
                self._run(held.request)

    def _release(self, waiting: Iterable[HeldPop]) -> None:
        for held in waiting:
            if held.timer is not None:
                self._expired(held)

    def _expired(self, held: HeldPop) -> None:
        self._end(held)
        if held.request.origin.is_open:
            held.expire()

    def _end(self, held: HeldPop) -> None:
        """The request no longer waits; it is in flight again."""
        if held.timer is not None:
            held.timer.cancel()
            held.timer = None
        for topic in held.wait.topics:
            waiting = self._by_topic[topic]
            del waiting[held]
            if not waiting:
                del self._by_topic[topic]
        held.request.origin.end_wait()
        self._count -= 1
