"""Members of consumer groups that lock queues as RocketMQ's orderly consumers do: they ask, renew, give up, and die.

A member asks any node of a broker group, and stays with it as long as that answers. It knows only what it was told:
that a lock is its own for `BELIEF_S` from the moment at which it *sent* the request that was granted, or until it gives
the lock up. One that dies comes back under another name, and says nothing to the brokers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from dledger_client import Admin, ClientError, MessageQueue
from dledger_client.core import ClientCore, check_response
from dledger_remoting.bodies import decode_body, encode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.queue_locks import LockedQueuesBody, QueueLocksBody
from dledger_remoting.topics import MessageQueue as QueueName
from dledger_remoting.topics import SubscriptionGroupConfig

from .base import WorkloadContext, WorkloadEntry
from .sending import attempt

NAME: Final = "locks"
TOPIC: Final = "chaos-locks"
GROUP: Final = "chaos-locks"
QUEUES: Final = 6
MEMBERS: Final = 4
BELIEF_S: Final = 31.0
"""RocketMQ's clients: 30 s from the answer, for which they wait a second."""
ANSWER_S: Final = 1.0

_ASKED: Final = 3
"""Queues of one request."""
_DEATHS: Final = 0.002
_GIVES_UP: Final = 0.6
"""Shares of steps in which a member dies, or gives up a lock."""
_PAUSE_SECONDS: Final = (0.02, 0.5)


class LocksWorkload:
    """See the module."""

    name = NAME

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make the topic and the group."""
        async with Admin(ctx.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
            await admin.create_group(SubscriptionGroupConfig(GROUP))

    async def run(self, ctx: WorkloadContext) -> None:
        """Lock until the end."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(MEMBERS):
                tasks.create_task(_live(ctx, number, random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Nothing is left to be read."""


async def _live(ctx: WorkloadContext, number: int, rng: random.Random) -> None:
    """One member after the other."""
    deaths = 0
    while not ctx.stopping.is_set():
        member = _Member(ctx, f"member-{number}-{deaths}", rng)
        try:
            while not ctx.stopping.is_set() and rng.random() >= _DEATHS:
                await member.act()
                await asyncio.sleep(rng.uniform(*_PAUSE_SECONDS))
        finally:
            await member.die()
        deaths += 1


class _Member:
    """One member of the group: one process of the history."""

    def __init__(self, ctx: WorkloadContext, name: str, rng: random.Random) -> None:
        self._ctx = ctx
        self._name = name
        self._rng = rng
        self._core = ClientCore(ctx.namesrv, client_id=name)
        self._nodes = {node.group: node for node in rng.sample(ctx.nodes, len(ctx.nodes))}
        self._held: set[MessageQueue] = set()

    async def act(self) -> None:
        """Give up a lock or ask for some: for others, and for those that are held."""
        if self._held and self._rng.random() < _GIVES_UP:
            await self._give_up(self._rng.choice(sorted(self._held)))
        else:
            group = self._rng.choice(sorted(self._nodes))
            queues = [MessageQueue(TOPIC, group, number) for number in self._rng.sample(range(QUEUES), _ASKED)]
            await self._ask(queues)

    async def die(self) -> None:
        """End all connections."""
        await self._core.close()

    async def _ask(self, queues: Sequence[MessageQueue]) -> None:
        invocations = {queue: self._ctx.recorder.invoke(NAME, self._name, "lock", _key(queue)) for queue in queues}
        try:
            body = await self._call(RequestCode.LOCK_BATCH_MQ, queues)
        except ClientError as error:
            for invocation in invocations.values():
                invocation.info(str(error))
            self._try_another(queues[0].broker_group)
            return
        named = decode_body(LockedQueuesBody, body).queues
        granted = {MessageQueue(one.topic, one.broker_name, one.queue_id) for one in named}
        for queue, invocation in invocations.items():
            if queue in granted:
                invocation.ok()
                self._held.add(queue)
            else:
                invocation.fail("another member has it")
                self._held.discard(queue)

    async def _give_up(self, queue: MessageQueue) -> None:
        self._held.discard(queue)
        invocation = self._ctx.recorder.invoke(NAME, self._name, "unlock", _key(queue))
        if await attempt(invocation, self._call(RequestCode.UNLOCK_BATCH_MQ, [queue])) is None:
            self._try_another(queue.broker_group)
        else:
            invocation.ok()

    def _try_another(self, group: str) -> None:
        self._nodes[group] = self._rng.choice([node for node in self._ctx.nodes if node.group == group])

    async def _call(self, code: int, queues: Sequence[MessageQueue]) -> bytes:
        """Ask a node of the queues' group, which passes it on to the leader. Raises `ClientError`."""
        node = self._nodes[queues[0].broker_group]
        names = [QueueName(queue.broker_group, queue.queue_id, queue.topic) for queue in queues]
        body = encode_body(QueueLocksBody(GROUP, self._name, names))
        deadline = self._core.loop.time() + ANSWER_S
        return check_response(await self._core.call(node.client, code, {}, body, deadline=deadline)).body


def _key(queue: MessageQueue) -> str:
    return f"{GROUP}@{queue}"


ENTRY: Final = WorkloadEntry(
    NAME, "members of a consumer group that lock queues, renew, give up and die", "broker", LocksWorkload
)
"""The line of the registry."""
