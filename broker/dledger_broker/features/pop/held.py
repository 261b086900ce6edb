"""Pops that wait for messages, and questions whether there are any. Each waits until its deadline.

A pop whose client has left takes no message. Otherwise its messages would stay hidden from the group for their
invisible time, and nobody would get them. The node that a client was connected to knows that the client has gone. If
the leader has requests of the client, the node notifies the leader (20019).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from dledger.environment import Cancellable, Environment
from dledger_broker.kernel.requests import Origin, Request, Requests, Waits, own_request
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand


class PopWait(NamedTuple):
    """Condition that a request waits for. `queue_id` is -1 for any queue. `topics` are the topics in which a message
    may arrive.
    """

    group: str
    topic: str
    queue_id: int
    topics: tuple[str, ...]
    has_filter: bool


class HeldPop:
    """Request that waits."""

    __slots__ = ("expire", "request", "timer", "wait")

    def __init__(self, request: Request, wait: PopWait, expire: Callable[[], None]) -> None:
        self.request = request
        self.wait = wait
        self.expire = expire
        self.timer: Cancellable | None = None


class HeldPops:
    """All waiting pops of a node. `run` handles a request again, which may hold the request once more."""

    def __init__(self, env: Environment, memory: Waits, run: Callable[[Request], None]) -> None:
        self._env = env
        self._memory = memory
        self._run = run
        self._by_topic: dict[str, dict[HeldPop, None]] = {}
        self._by_channel: dict[str, dict[HeldPop, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def count_of(self, group: str, topic: str, queue_id: int) -> int:
        """Return how many requests wait for a queue of a topic, or with -1 for any queue."""
        return sum(held.wait[:3] == (group, topic, queue_id) for held in self._by_topic.get(topic, ()))

    def hold(self, request: Request, wait: PopWait, deadline: float, expire: Callable[[], None]) -> None:
        """Let a request wait. `expire` answers the request at its deadline."""
        held = HeldPop(request, wait, expire)
        self._memory.begin_wait(request)
        self._count += 1
        for topic in wait.topics:
            self._by_topic.setdefault(topic, {})[held] = None
        self._by_channel.setdefault(request.origin.key, {})[held] = None
        held.timer = self._env.call_later(max(0.0, deadline - self._env.now()), partial(self._expired, held))

    def drop(self, channel: str) -> None:
        """Drop the pops of a channel whose client has gone."""
        for held in list(self._by_channel.get(channel, ())):
            self._end(held)
            held.request.origin.settle()

    def arrived(self, topics: Iterable[str]) -> None:
        """Handle pops that wait for messages in these topics again. A topic may be named more than once.

        Requests that wait for the same messages are handled in turn until the first of them waits again, because then
        no message is left.
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
        """Answer all waiting requests now, because the leadership changed or this node is leaving."""
        self._release(held for waiting in list(self._by_topic.values()) for held in list(waiting))

    def rerun_matching(self, matches: Callable[[PopWait], bool]) -> None:
        """Handle again the requests whose topic or group has changed or gone."""
        for held in [held for waiting in self._by_topic.values() for held in waiting]:
            if held.timer is not None and matches(held.wait):
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
        """End the wait of a request, which is in flight again."""
        if held.timer is not None:
            held.timer.cancel()
            held.timer = None
        for topic in held.wait.topics:
            waiting = self._by_topic[topic]
            del waiting[held]
            if not waiting:
                del self._by_topic[topic]
        of_channel = self._by_channel[held.request.origin.key]
        del of_channel[held]
        if not of_channel:
            del self._by_channel[held.request.origin.key]
        self._memory.end_wait(held.request)
        self._count -= 1


KEPT_S: Final = 120.0
"""Time in seconds for which a gone channel is remembered. It is longer than a request of the channel takes."""


class GoneClients:
    """Memory of clients, of this node and of other nodes, that have gone."""

    def __init__(self, env: Environment, requests: Requests, held: HeldPops) -> None:
        self._env = env
        self._requests = requests
        self._held = held
        self._gone_elsewhere: OrderedDict[str, float] = OrderedDict()
        """Channels of other nodes, with the time at which their clients went."""

    def lost(self, channel: Origin) -> None:
        """Drop the pops of a client of this node whose connection has closed, here and at the leader."""
        self._held.drop(channel.key)
        if channel.forwards:
            command = RemotingCommand(RequestCode.CHANNEL_GONE, flag=FLAG_ONEWAY)
            self._requests.pass_on(own_request(channel, command, self._env.now()))

    def note(self, request: Request) -> None:
        """Drop the pops that another node passed on for a client that has gone (20019)."""
        channel, now = request.origin.key, self._env.now()
        if request.origin.is_forwarded:
            self._gone_elsewhere[channel] = now
            while now - next(iter(self._gone_elsewhere.values())) > KEPT_S:
                self._gone_elsewhere.popitem(last=False)
            self._held.drop(channel)
        request.respond()

    def has_sent(self, request: Request) -> bool:
        """Return whether the client that sent a request has gone since."""
        return not request.origin.is_open or request.origin.key in self._gone_elsewhere
