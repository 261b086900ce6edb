"""Announcements: hold back answers until name servers know of a change of topics.

Some answers make a client ask a name server for a route a moment later, and it must find the route. They say that a
topic or group exists or can be written to again, or that the first message in a topic is stored. Such an answer
therefore waits until every reachable name server has the change. A send to a new topic waits as well. The wait lasts
`FINDABLE_S` at most, and ends if this node can no longer register at the name servers. Then the answer says which name
servers do not show the change yet.

Only unanswered requests take memory here, and connections bound these. All of them share one timer.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeAlias

from dledger.environment import Cancellable, Environment
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.events import EventListener
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.requests import Request

_logger = logging.getLogger(__name__)

FINDABLE_S: Final = 1.0
"""Time limit in seconds for which an answer waits for name servers. Clients give up after 3 s."""

Findable: TypeAlias = Callable[[str], None]
"""Called once a change can be found, with an empty text, or with a text that names the servers that lack it."""


class NameServers(Protocol):
    """The name servers' knowledge of this node's topics, by the version of their table."""

    def announced_version(self) -> float:
        """Return the version that all awaited name servers have, infinity if no name server is awaited."""

    def servers_behind(self, version: int) -> Sequence[str]:
        """Return the reachable name servers with which this node has not registered this version or a later version."""

    def announce_soon(self) -> None:
        """Register at the name servers soon, because a request waits."""


class _Announcement:
    """A change on its way to the name servers: its new topics, and the callbacks for its arrival."""

    __slots__ = ("callbacks", "deadline", "topics", "version")

    def __init__(self, topics: Sequence[str], version: int, deadline: float, done: Findable) -> None:
        self.topics = topics
        self.version = version
        self.deadline = deadline
        self.callbacks = [done]


class Announcements(EventListener):
    """Changes of topics that this node, as the leader, has to register. Without name servers nothing waits."""

    def __init__(self, env: Environment, machine: BrokerMachine, counters: BrokerCounters) -> None:
        self._env = env
        self._machine = machine
        self._counters = counters
        self._name_servers: NameServers | None = None
        self._waiting: deque[_Announcement] = deque()
        self._new_topics: dict[str, _Announcement] = {}
        self._timer: Cancellable | None = None

    def attach(self, name_servers: NameServers) -> None:
        """Wait for these name servers from now on."""
        self._name_servers = name_servers

    def answer(self, request: Request, new_topics: Sequence[str]) -> None:
        """Answer a request with 0 once its change can be found, with a remark if that takes too long."""
        self.announce(new_topics, partial(_answer, request))

    def announce(self, new_topics: Sequence[str], done: Findable) -> None:
        """Call `done` once all changes so far can be found, at once if they can. `new_topics` are the topics that they
        created.
        """
        version = self._machine.state.topic_table.version
        announcement = _Announcement(new_topics, version, self._env.now() + FINDABLE_S, done)
        if self._name_servers is None or self._name_servers.announced_version() >= version:
            self._end([announcement])
            return
        self._waiting.append(announcement)
        self._new_topics.update(dict.fromkeys(new_topics, announcement))
        self._watch()
        self._name_servers.announce_soon()

    def holds(self, topic: str, resume: Findable) -> bool:
        """Return whether a topic is too new for sends. If so, `resume` is called when sends may continue."""
        announcement = self._new_topics.get(topic)
        if announcement is None:
            return False
        announcement.callbacks.append(resume)
        return True

    def leader_changed(self) -> None:
        self.check()

    def name_servers_changed(self) -> None:
        self.check()

    def check(self) -> None:
        """Note that name servers took a registration or cannot be reached, or that this node no longer leads."""
        announced_version = math.inf if self._name_servers is None else self._name_servers.announced_version()
        now = self._env.now()
        ended = []
        while self._waiting and (self._waiting[0].version <= announced_version or self._waiting[0].deadline <= now):
            ended.append(self._waiting.popleft())
        self._end(ended)

    def _watch(self) -> None:
        if self._timer is None and self._waiting:
            self._timer = self._env.call_later(self._waiting[0].deadline - self._env.now(), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.check()
        self._watch()

    def _end(self, announcements: Sequence[_Announcement]) -> None:
        """End the wait for these changes. If a name server lacks a change, the remark says so."""
        late: dict[_Announcement, str] = {}
        for announcement in announcements:
            for topic in announcement.topics:
                if self._new_topics.get(topic) is announcement:
                    del self._new_topics[topic]
            late[announcement] = self._missing(announcement)
        missing_texts = [text for text in late.values() if text]
        if missing_texts:
            self._counters.changes_untold += len(missing_texts)
            _logger.warning("event=changes_untold changes=%d namesrv=%s", len(missing_texts), missing_texts[-1])
        for announcement, missing in late.items():
            remark = missing and f"done, but not shown yet by name server {missing}: clients may find it later"
            for callback in announcement.callbacks:
                callback(remark)

    def _missing(self, announcement: _Announcement) -> str:
        """Return the reachable name servers that do not show a change, as text; empty if all show it."""
        return "" if self._name_servers is None else ",".join(self._name_servers.servers_behind(announcement.version))


def _answer(request: Request, remark: str) -> None:
    request.respond(remark=remark or None)
