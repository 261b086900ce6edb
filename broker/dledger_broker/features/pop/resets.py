"""Resets of popped queues: a commit (15) that says `reset` has a group go on elsewhere, and ends what it has popped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from dledger.errors import LogError
from dledger_broker.features.pop.changes import PopChanges
from dledger_broker.features.pop.commands import NO_ROW, PopQueueKey, ResetPop
from dledger_broker.kernel.machine import BrokerMachine
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

    def take(self, request: Request, header: UpdateConsumerOffsetHeader) -> bool:
        """Have a group go on at an offset; False, and nothing done, if it does not pop the queue."""
        key = PopQueueKey(header.consumer_group, header.topic, header.queue_id)
        topic = self._machine.topic(header.topic)
        if topic is None or self._changes.next_offset(key) == NO_ROW:
            return False
        command = ResetPop(key.group, key.topic, topic.created_position, key.queue_id, header.commit_offset)
        self._changes.reset(command, partial(self._done, request, header.topic))
        return True

    def _done(self, request: Request, topic: str, error: LogError | None) -> None:
        if error is None:
            request.respond()
            self._on_reset((topic,))
        else:
            self._requests.fail(request, error)
