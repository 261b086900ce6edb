"""Members of a consumer group that lock queues as RocketMQ's orderly consumers do: they lock, renew, unlock, and die.

A member asks any node of a broker group, and continues with this node while it answers. It relies on a lock until
`BELIEF_S` after it *sent* the granted request, or until it unlocks the queue. A member that dies does not notify the
brokers. Another member with another name takes its place.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from dledger_client import Admin, ClientError, MessageQueue
from dledger_client.cluster.core import ClientCore, check_response
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
"""Time in seconds from a request for which a member relies on a lock.

RocketMQ's clients rely on it for 30 s from the answer, for which they wait up to a second.
"""
ANSWER_S: Final = 1.0

_QUEUES_PER_REQUEST: Final = 3
"""Number of queues in one request."""
_DEATH_SHARE: Final = 0.002
_UNLOCK_SHARE: Final = 0.6
"""Shares of steps in which a member dies, or gives up a lock."""
_PAUSE_SECONDS: Final = (0.02, 0.5)


class LocksWorkload:
    """Clients of the workload `locks`, as the module describes it."""

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
                tasks.create_task(_run_members(ctx, number, random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Do nothing: there is nothing to read."""


async def _run_members(ctx: WorkloadContext, number: int, rng: random.Random) -> None:
    """Run members one after another: a new member replaces each member that dies."""
    deaths = 0
    while not ctx.stopping.is_set():
        member = _Member(ctx, f"member-{number}-{deaths}", rng)
        try:
            while not ctx.stopping.is_set() and rng.random() >= _DEATH_SHARE:
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
        self._locked_queues: set[MessageQueue] = set()

    async def act(self) -> None:
        """Unlock one queue, or request locks, some of which the member may have already."""
        if self._locked_queues and self._rng.random() < _UNLOCK_SHARE:
            await self._unlock(self._rng.choice(sorted(self._locked_queues)))
        else:
            group = self._rng.choice(sorted(self._nodes))
            queues = [
                MessageQueue(TOPIC, group, number) for number in self._rng.sample(range(QUEUES), _QUEUES_PER_REQUEST)
            ]
            await self._lock(queues)

    async def die(self) -> None:
        """End all connections."""
        await self._core.close()

    async def _lock(self, queues: Sequence[MessageQueue]) -> None:
        invocations = {
            queue: self._ctx.recorder.invoke(NAME, self._name, "lock", _format_key(queue)) for queue in queues
        }
        try:
            body = await self._call(RequestCode.LOCK_BATCH_MQ, queues)
        except ClientError as error:
            for invocation in invocations.values():
                invocation.info(str(error))
            self._switch_node(queues[0].broker_group)
            return
        locked = decode_body(LockedQueuesBody, body).queues
        granted = {MessageQueue(one.topic, one.broker_name, one.queue_id) for one in locked}
        for queue, invocation in invocations.items():
            if queue in granted:
                invocation.ok()
                self._locked_queues.add(queue)
            else:
                invocation.fail("another member has it")
                self._locked_queues.discard(queue)

    async def _unlock(self, queue: MessageQueue) -> None:
        self._locked_queues.discard(queue)
        invocation = self._ctx.recorder.invoke(NAME, self._name, "unlock", _format_key(queue))
        if await attempt(invocation, self._call(RequestCode.UNLOCK_BATCH_MQ, [queue])) is None:
            self._switch_node(queue.broker_group)
        else:
            invocation.ok()

    def _switch_node(self, group: str) -> None:
        self._nodes[group] = self._rng.choice([node for node in self._ctx.nodes if node.group == group])

    async def _call(self, code: int, queues: Sequence[MessageQueue]) -> bytes:
        """Call a node of the queues' group, which forwards the request to the leader. Raises `ClientError`."""
        node = self._nodes[queues[0].broker_group]
        names = [QueueName(queue.broker_group, queue.queue_id, queue.topic) for queue in queues]
        body = encode_body(QueueLocksBody(GROUP, self._name, names))
        deadline = self._core.loop.time() + ANSWER_S
        return check_response(await self._core.call(node.client, code, {}, body, deadline=deadline)).body


def _format_key(queue: MessageQueue) -> str:
    return f"{GROUP}@{queue}"


ENTRY: Final = WorkloadEntry(
    NAME,
    "members of a consumer group that lock queues, renew and release the locks, or die without releasing them",
    "broker",
    LocksWorkload,
)
