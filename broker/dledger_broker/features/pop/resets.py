"""Resets of popped queues: a commit (15) with `reset` moves the group to another offset and ends its deliveries."""

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
    """Handler of resets on the leader. `on_reset` is called with the topics in which there may be messages to pop
    again.
    """

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
        """Return whether a group pops a queue, given as (group, topic, queue id)."""
        return self._changes.next_offset(PopQueueKey(*key)) != NO_ROW

    def take(self, request: Request, header: UpdateConsumerOffsetHeader) -> bool:
        """Move a group to an offset. Return False and do nothing if the group does not pop the queue."""
        key = (header.consumer_group, header.topic, header.queue_id)
        topic = self._machine.topic(header.topic)
        if topic is None or not self.pops(key):
            return False
        self.reset(key, topic, header.commit_offset, partial(self._done, request))
        return True

    def reset(self, key: tuple[str, str, int], topic: TopicState, offset: int, done: Done) -> None:
        """Move a group that pops a queue to an offset of that queue."""
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
