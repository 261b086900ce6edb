"""Topics that are deleted while messages to them are on their way.

Again and again a topic is created, some messages are sent to it at the same time, and meanwhile it is deleted.  What is
acknowledged may go with its topic, but it must have been in it: no message lies behind the deletion of its topic in the
log.  It might where the two arrive together and a segment's end comes between them, so messages are large.
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
"""Messages and the deletion are sent within this time of each other."""
_DEADLINE_SECONDS: Final = 3.0
_PAUSE_SECONDS: Final = 0.1
_QUICK_ROUNDS: Final = 300
_SLOW_PAUSE_SECONDS: Final = 1.0
"""After so many rounds: the log of a long run is not to have more files than a node may keep open."""


class PassingWorkload:
    """See the module."""

    name = NAME

    def __init__(self) -> None:
        self._producers: list[Producer] = []

    async def setup(self, ctx: WorkloadContext) -> None:
        """Start the producers, whose bodies are sent as they are, for their size matters."""
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
        """The log is what is read at the end, from the nodes' directories."""
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
    NAME, "topics that are deleted while messages to them are on their way", "broker", PassingWorkload
)
"""The line of the registry."""
