"""Commits of consumer offsets on their way into the log of this leader."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger.errors import LogError, NotLeaderError
from dledger_broker.features.offsets.buffer import OffsetBuffer
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.events import EventListener
from dledger_broker.kernel.machine import BrokerMachine

FLUSH_AT_STOP_S: Final = 1.0
"""Time limit for committing the held-back offsets when a leader stops."""


class OffsetCommits(EventListener):
    """Collector of commits in `buffer`, which proposes or discards them when the leadership or a deletion requires it.

    It proposes held-back commits before a topic or group is deleted, before a handover, and at the stop. It discards
    them when this leader is deposed.
    """

    def __init__(self, machine: BrokerMachine, env: Environment, delay_ms: int) -> None:
        self.buffer = OffsetBuffer(env, self._propose, delay_ms)
        self._machine = machine
        self._env = env

    async def flush(self) -> None:
        """Commit what is held back, so that the next leader has it: clients do not repeat one-way commits.

        More commits may arrive meanwhile, so this repeats until no commit is left or the time limit has passed.
        """
        deadline = self._env.now() + FLUSH_AT_STOP_S
        while self._machine.leadership.ready and (left_s := deadline - self._env.now()) > 0:
            flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            timer = self._env.call_later(left_s, partial(_resolve, flushed, None))
            self.buffer.flush(partial(_resolve, flushed))
            await flushed
            timer.cancel()
            if not self.buffer.collected:
                return

    def _propose(self, command: Command, done: Done) -> None:
        try:
            privileged = self._machine.overlay.may_use_reserve
        except NotLeaderError as error:
            done(error)
            return
        self._machine.overlay.stage_command(command, done, privileged=privileged)

    def unready(self, error: NotLeaderError) -> None:
        self.buffer.discard(error)

    def prepare_handover(self) -> None:
        self.buffer.flush(_ignore_result)

    def prepare_deletion(self) -> None:
        self.buffer.flush(_ignore_result)


def _resolve(future: asyncio.Future[None], _error: LogError | None) -> None:
    if not future.done():
        future.set_result(None)


def _ignore_result(_error: LogError | None) -> None:
    """Ignore the outcome: the commits have waiters of their own."""
