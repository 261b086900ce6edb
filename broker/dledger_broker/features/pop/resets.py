"""Resets of popped queues: a commit (15) that says `reset` has a group go on elsewhere, and ends what it has popped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from dledger.errors import LogError
from dledger_broker.features.pop.changes import PopChanges
from dledger_broker.features.pop.commands import NO_ROW, PopQueueKey, ResetPop
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import TopicState
from dledger_broker.kernel.requests import Request, Requests
from dledger_remoting.headers import UpdateConsumerOffsetHeader


class PopResets:
    """Takes them on the leader; `on_reset` is told the topics in which there may be something to pop again."""

    def __init__(
        self,
        machine: BrokerMachine,
        changes: PopChanges,
        requests: Requests,
        on_reset: Callable[[Iterable[str]], None],
    ) -> None:
        self._machine = machine
        self._changes = changes
        self._requests = requests
        self._on_reset = on_reset

    def pops(self, key: tuple[str, str, int]) -> bool:
        """Whether a group, the first of the three, pops a queue."""
        return self._changes.next_offset(PopQueueKey(*key)) != NO_ROW

    def take(self, request: Request, header: UpdateConsumerOffsetHeader) -> bool:
        """Have a group go on at an offset; False, and nothing done, if it does not pop the queue."""
        key = (header.consumer_group, header.topic, header.queue_id)
        topic = self._machine.topic(header.topic)
        if topic is None or not self.pops(key):
            return False
        self.reset(key, topic, header.commit_offset, partial(self._done, request))
        return True

    def reset(self, key: tuple[str, str, int], topic: TopicState, offset: int, done: Done) -> None:
        """Have a group that pops a queue go on at an offset of it."""
        command = ResetPop(key[0], key[1], topic.created_position, key[2], offset)
        self._changes.reset(command, partial(self._reset, key[1], done))

    def _reset(self, topic: str, done: Done, error: LogError | None) -> None:
        done(error)
        if error is None:
            self._on_reset((topic,))

    def _done(self, request: Request, error: LogError | None) -> None:
        if error is None:
            request.respond()
        else:
            self._requests.fail(request, error)
