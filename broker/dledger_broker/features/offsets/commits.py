"""Commits of consumer offsets that this leader takes, on their way into its log."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger.errors import LogError, NotLeaderError
from dledger_broker.features.offsets.buffer import OffsetBuffer
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.machine import BrokerMachine

FLUSH_AT_STOP_S: Final = 1.0
"""How long a leader that stops waits for a majority to have the commits that it holds back."""


class OffsetCommits:
    """Collects commits in `buffer`; proposes them at the latest when a topic or a group is about to be deleted, when
    this leader hands over, and when it stops; discards them when it is deposed.
    """

    def __init__(self, machine: BrokerMachine, env: Environment, delay_ms: int) -> None:
        self.buffer = OffsetBuffer(env, self._propose, delay_ms)
        self._machine = machine
        self._env = env
        machine.overlay.before_deletion.append(self._propose_all)
        machine.before_handover.append(self._propose_all)
        machine.on_unready.append(self._discard)

    async def flush(self) -> None:
        """Put what is held back into the log: whoever leads next has it, and nobody asks for one-way commits again.

        While that is under way more may come.
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

    def _discard(self, error: NotLeaderError) -> None:
        self.buffer.discard(error)

    def _propose_all(self) -> None:
        self.buffer.flush(_nobody_asked)


def _resolve(future: asyncio.Future[None], _error: LogError | None) -> None:
    if not future.done():
        future.set_result(None)


def _nobody_asked(_error: LogError | None) -> None:
    """Told what became of commits that have waiters of their own."""
