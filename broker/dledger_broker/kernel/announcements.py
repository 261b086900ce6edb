"""Topics that the name servers are about to be told of, and who waits for that.

Who was answered that a topic exists, or has stored the first message in it, asks a name server for its route a moment
later, and must find it. So the answer waits until every name server that can be reached has taken the change, and so
does a send to a new topic. One that hangs is not waited for longer than `FINDABLE_S`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from dledger.environment import Cancellable, Environment
from dledger_broker.kernel.machine import BrokerMachine

FINDABLE_S: Final = 1.0
"""How long an answer waits for name servers at most; clients give up after 3 s."""


class _Announcement:
    """A change that is on its way: the topics that are new with it, and whom to call once it has arrived."""

    __slots__ = ("deadline", "dones", "topics", "version")

    def __init__(self, topics: Sequence[str], version: int, deadline: float, done: Callable[[], None]) -> None:
        self.topics = topics
        self.version = version
        self.deadline = deadline
        self.dones = [done]


class Announcements:
    """What this node, as the leader, has to tell of its machine's topics. Without a registrar nobody is told, and
    nothing waits.
    """

    def __init__(self, env: Environment, machine: BrokerMachine) -> None:
        self._env = env
        self._machine = machine
        self._told: Callable[[], float] = lambda: math.inf
        self._hurry: Callable[[], None] = lambda: None
        self._waiting: deque[_Announcement] = deque()
        self._new: dict[str, _Announcement] = {}
        self._timer: Cancellable | None = None

    def attach(self, told: Callable[[], float], hurry: Callable[[], None]) -> None:
        """`told()` is the version that all name servers know that are to be waited for; `hurry()` has them told."""
        self._told, self._hurry = told, hurry

    def announce(self, new: Sequence[str], done: Callable[[], None]) -> None:
        """Call `done` once what has changed so far can be found, at once if it can; `new` are topics made by that."""
        version = self._machine.state.topic_table.version
        if self._told() >= version:
            done()
            return
        announcement = _Announcement(new, version, self._env.now() + FINDABLE_S, done)
        self._waiting.append(announcement)
        self._new.update(dict.fromkeys(new, announcement))
        if self._timer is None:
            self._timer = self._env.call_later(FINDABLE_S, self._on_timer)
        self._hurry()

    def holds(self, topic: str, resume: Callable[[], None]) -> bool:
        """Whether a topic is too new to be sent to; `resume` is called when it no longer is."""
        announcement = self._new.get(topic)
        if announcement is None:
            return False
        announcement.dones.append(resume)
        return True

    def check(self) -> None:
        """Name servers were told something, cannot be reached, or this node no longer leads."""
        told = self._told()
        while self._waiting and self._waiting[0].version <= told:
            self._arrived(self._waiting.popleft())

    def _on_timer(self) -> None:
        self._timer = None
        self.check()
        while self._waiting and self._waiting[0].deadline <= self._env.now():
            self._arrived(self._waiting.popleft())
        if self._waiting:
            self._timer = self._env.call_later(self._waiting[0].deadline - self._env.now(), self._on_timer)

    def _arrived(self, announcement: _Announcement) -> None:
        for topic in announcement.topics:
            if self._new.get(topic) is announcement:
                del self._new[topic]
        for done in announcement.dones:
            done()
