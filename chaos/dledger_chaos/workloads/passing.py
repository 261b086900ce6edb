"""A topic that is created and deleted again and again, while messages are sent to it.

An acknowledged message may be deleted with its topic, but it must have been stored in it. In the log, no message may
lie behind the deletion of its topic. That could happen if both arrive together and a segment ends between them. So
messages are large, which makes segments end often.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from dledger_client import Admin, ClientError, Producer

from .base import WorkloadContext, WorkloadEntry
from .sending import RecordedSends

NAME: Final = "passing"
TOPIC: Final = "chaos-passing"
F: Final = "send-passing"
SENDERS: Final = 4
MESSAGE_BYTES: Final = 200_000

_SPREAD_SECONDS: Final = 0.002
"""Maximum time in seconds between the sends of a round and its deletion."""
_DEADLINE_SECONDS: Final = 3.0
_PAUSE_SECONDS: Final = 0.1
_QUICK_ROUNDS: Final = 300
_SLOW_PAUSE_SECONDS: Final = 1.0
"""Pause in seconds after `_QUICK_ROUNDS` rounds. It keeps the log of a long run below a node's limit of open files."""


class PassingWorkload:
    """Clients of the workload `passing`, as the module describes it."""

    name = NAME

    def __init__(self) -> None:
        self._producers: list[Producer] = []

    async def setup(self, ctx: WorkloadContext) -> None:
        """Start the producers. They do not compress bodies, because the size of messages matters."""
        for number in range(SENDERS):
            producer = Producer(
                ctx.namesrv,
                group=f"chaos-passing-{number}",
                timeout=_DEADLINE_SECONDS,
                retry_unknown=False,
                compress_over_bytes=None,
            )
            await producer.start()
            self._producers.append(producer)

    async def run(self, ctx: WorkloadContext) -> None:
        """Create, send and delete until the end."""
        rng = random.Random(ctx.rng.random())
        sends = [
            RecordedSends(ctx.recorder, NAME, f"sender-{number}", producer, TOPIC, f=F)
            for number, producer in enumerate(self._producers)
        ]
        async with Admin(ctx.namesrv, timeout=_DEADLINE_SECONDS) as admin:
            rounds = 0
            while not ctx.stopping.is_set():
                rounds += 1
                try:
                    await admin.create_topic(TOPIC, queues=1)
                except ClientError:
                    await asyncio.sleep(_PAUSE_SECONDS)
                    continue
                await asyncio.gather(self._delete(admin, rng), *(self._send(sender, rng) for sender in sends))
                await asyncio.sleep(_PAUSE_SECONDS if rounds < _QUICK_ROUNDS else _SLOW_PAUSE_SECONDS)

    async def finish(self, ctx: WorkloadContext) -> None:
        """Do nothing: the checks read the log from the nodes' directories."""
        del ctx
        for producer in self._producers:
            await producer.close()

    @staticmethod
    async def _send(sends: RecordedSends, rng: random.Random) -> None:
        await asyncio.sleep(rng.random() * _SPREAD_SECONDS)
        await sends.send(MESSAGE_BYTES)

    @staticmethod
    async def _delete(admin: Admin, rng: random.Random) -> None:
        await asyncio.sleep(rng.random() * _SPREAD_SECONDS)
        try:
            await admin.delete_topic(TOPIC)
        except ClientError:
            pass  # the next round creates it, whether it is there or not


ENTRY: Final = WorkloadEntry(
    NAME, "a topic that is created and deleted again and again while messages are sent to it", "broker", PassingWorkload
)
