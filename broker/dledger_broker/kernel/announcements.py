"""Changes that the name servers are about to be told of, and who waits for that.

Who was answered that a topic or group exists, or may be written to again, or has stored the first message in a topic,
asks a name server for its route a moment later, and must find it. So the answer waits until every name server that can
be reached has taken the change, and so does a send to a new topic. It waits for `FINDABLE_S` at most, and not for what
this node can no longer tell: then it says which name servers do not show the change yet.

Nothing is kept but for requests that are not answered, which connections bound, and one timer is for all of them.
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
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.requests import Request

_logger = logging.getLogger(__name__)

FINDABLE_S: Final = 1.0
"""How long an answer waits for name servers at most; clients give up after 3 s."""

Findable: TypeAlias = Callable[[str], None]
"""Called once a change can be found, with an empty text, or with one that says where it cannot."""


class NameServers(Protocol):
    """What the name servers know of this node's topics, by the version of their table."""

    def told_version(self) -> float:
        """The version that all know that are to be waited for; infinite if none is."""

    def untold(self, version: int) -> Sequence[str]:
        """Those which can be reached and have neither this version from this node nor a later one."""

    def hurry(self) -> None:
        """Tell them soon: somebody waits."""


class _Announcement:
    """A change that is on its way: the topics that are new with it, and whom to call once it has arrived."""

    __slots__ = ("deadline", "dones", "topics", "version")

    def __init__(self, topics: Sequence[str], version: int, deadline: float, done: Findable) -> None:
        self.topics = topics
        self.version = version
        self.deadline = deadline
        self.dones = [done]


class Announcements:
    """What this node, as the leader, has to tell of its machine's topics. Without name servers nobody is told, and
    nothing waits.
    """

    def __init__(self, env: Environment, machine: BrokerMachine, counters: BrokerCounters) -> None:
        self._env = env
        self._machine = machine
        self._counters = counters
        self._name_servers: NameServers | None = None
        self._waiting: deque[_Announcement] = deque()
        self._new: dict[str, _Announcement] = {}
        self._timer: Cancellable | None = None

    def attach(self, name_servers: NameServers) -> None:
        """Wait for these from now on."""
        self._name_servers = name_servers

    def answer(self, request: Request, new: Sequence[str]) -> None:
        """Answer a request with 0 once what it has changed can be found; with a remark if that takes too long."""
        self.announce(new, partial(_answer, request))

    def announce(self, new: Sequence[str], done: Findable) -> None:
        """Call `done` once what has changed so far can be found, at once if it can; `new` are topics made by that."""
        version = self._machine.state.topic_table.version
        announcement = _Announcement(new, version, self._env.now() + FINDABLE_S, done)
        if self._name_servers is None or self._name_servers.told_version() >= version:
            self._end([announcement])
            return
        self._waiting.append(announcement)
        self._new.update(dict.fromkeys(new, announcement))
        self._watch()
        self._name_servers.hurry()

    def holds(self, topic: str, resume: Findable) -> bool:
        """Whether a topic is too new to be sent to; `resume` is called when it no longer is."""
        announcement = self._new.get(topic)
        if announcement is None:
            return False
        announcement.dones.append(resume)
        return True

    def check(self) -> None:
        """Name servers were told something, cannot be reached, or this node no longer leads."""
        told = math.inf if self._name_servers is None else self._name_servers.told_version()
        now = self._env.now()
        ended = []
        while self._waiting and (self._waiting[0].version <= told or self._waiting[0].deadline <= now):
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
        """Nobody waits for these any longer: they have arrived, or what is missing is told."""
        late: dict[_Announcement, str] = {}
        for announcement in announcements:
            for topic in announcement.topics:
                if self._new.get(topic) is announcement:
                    del self._new[topic]
            late[announcement] = self._missing(announcement)
        untold = [text for text in late.values() if text]
        if untold:
            self._counters.changes_untold += len(untold)
            _logger.warning("event=changes_untold changes=%d namesrv=%s", len(untold), untold[-1])
        for announcement, missing in late.items():
            remark = missing and f"done, but not shown yet by name server {missing}: clients may find it later"
            for done in announcement.dones:
                done(remark)

    def _missing(self, announcement: _Announcement) -> str:
        """The name servers that do not show a change, empty if all do that can be reached."""
        return "" if self._name_servers is None else ",".join(self._name_servers.untold(announcement.version))


def _answer(request: Request, remark: str) -> None:
    request.respond(remark=remark or None)
