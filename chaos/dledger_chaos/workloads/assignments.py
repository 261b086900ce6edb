"""A consumer group whose members ask the brokers for their queues, and administrators that set its request mode.

| process | action |
|---|---|
| `member-<n>` | asks any node for its queues (400) for a few seconds, then leaves and comes back |
| `setter-<n>` | sets the request mode of a consumer group (401) through the leader or any node, and reads it (402) |
| `final` | after healing, reads each mode once more, then sets the mode of the group that has members |
| `last-<n>` | members that stay: they ask until they share the queues in the mode that `final` has set |

The request mode is a register for each consumer group and each broker group (`modes`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from itertools import count
from typing import Final

from dledger_client import Admin, ClientError
from dledger_client.cluster.core import ClientCore, check_response
from dledger_client.consuming.membership import heartbeat_of
from dledger_client.subscriptions import subscription
from dledger_remoting.assignments import (
    AssignmentsBody,
    QueryAssignmentBody,
    QueueAssignment,
    RequestMode,
)
from dledger_remoting.bodies import decode_body, encode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.filters.tags import SUBSCRIBE_ALL
from dledger_remoting.topics import MessageQueue as QueueName
from dledger_remoting.topics import SubscriptionGroupConfig

from .base import NodeAddresses, WorkloadContext, WorkloadEntry
from .members import come_and_go
from .modes import ModeNames, RecordedModes

NAME: Final = "assignments"
TOPIC: Final = "chaos-assignments"
GROUP: Final = "chaos-assignments"
QUEUES: Final = 6
"""Number of queues of each broker group."""
MEMBERS: Final = 3
SETTERS: Final = 3
FINAL: Final = "final"
LAST: Final = "last"
"""Prefix of the names of the members that stay until the end."""
ALL_QUEUES: Final = -1
"""Queue id of an assignment that stands for all queues of its broker group."""

_DEADLINE_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 4.0
"""Time limit for an assignment. After 2.5 s a broker answers that a member keeps its present queues."""
_PAUSE_SECONDS: Final = 0.1
_LIFE_SECONDS: Final = (3.0, 12.0)
_FINAL_READ_SECONDS: Final = 30.0
_FINAL_SECONDS: Final = 150.0
"""Time limit for the final members. A broker may regard a member whose connection was cut as alive for a while."""
_POLL_SECONDS: Final = 0.2


class AssignmentsWorkload:
    """Clients of the workload `assignments`, as the module describes it."""

    name = NAME

    def __init__(self) -> None:
        self._core: ClientCore | None = None
        self._modes: RecordedModes | None = None
        self._names: dict[str, ModeNames] = {}
        self._numbers = count(1)
        self._member_numbers = count()

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make topic and group, and start the setters' client."""
        async with Admin(ctx.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
            await admin.create_group(SubscriptionGroupConfig(GROUP))
        self._core = ClientCore(ctx.namesrv)
        self._core.start()
        await self._core.routes.get(TOPIC, self._core.loop.time() + _DEADLINE_SECONDS)
        self._modes = RecordedModes(ctx, NAME, self._core, TOPIC)
        self._names = {group: ModeNames(GROUP) for group in sorted({node.group for node in ctx.nodes})}

    async def run(self, ctx: WorkloadContext) -> None:
        """Ask for queues and set modes until the end."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(SETTERS):
                tasks.create_task(self._keep_setting(ctx, f"setter-{number}", random.Random(ctx.rng.random())))
            for number in range(MEMBERS):
                rng = random.Random(ctx.rng.random())
                member = partial(self._run_member, ctx, f"member-{number}", rng)
                tasks.create_task(come_and_go(ctx, rng, _LIFE_SECONDS, member))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Read every mode once more; let members share the queues in one mode, then in the other."""
        if self._core is None or self._modes is None:
            return
        for broker_group, names in self._names.items():
            for name in names.used:
                await self._modes.read(FINAL, broker_group, name, None, seconds=_FINAL_READ_SECONDS)
        with suppress(TimeoutError):  # the checker judges what is missing then
            async with asyncio.timeout(_FINAL_SECONDS):
                await self._share_at_end(ctx, random.Random(ctx.rng.random()))
        await self._core.close()

    # ---------------------------------------------------------------- modes

    async def _keep_setting(self, ctx: WorkloadContext, process: str, rng: random.Random) -> None:
        assert self._modes is not None
        while not ctx.stopping.is_set():
            broker_group = rng.choice(sorted(self._names))
            node = rng.choice([None, *(node for node in ctx.nodes if node.group == broker_group)])
            names = self._names[broker_group]
            name = names.pick()
            if rng.random() < 0.5:
                await self._modes.read(process, broker_group, name, node)
            else:
                mode = rng.choice((RequestMode.PULL, RequestMode.POP))
                if not await self._modes.write(process, broker_group, name, node, mode, next(self._numbers)):
                    names.unknown(name)
            await asyncio.sleep(_PAUSE_SECONDS)

    # ---------------------------------------------------------------- members

    @asynccontextmanager
    async def _run_member(self, ctx: WorkloadContext, process: str, rng: random.Random) -> AsyncIterator[None]:
        """Run a member that asks for its queues until the context ends."""
        async with self._open_member(ctx, process) as member:
            asking = asyncio.create_task(_keep_asking(ctx, member, rng))
            try:
                yield
            finally:
                asking.cancel()
                with suppress(asyncio.CancelledError):  # another error ends the workload
                    await asking

    @asynccontextmanager
    async def _open_member(self, ctx: WorkloadContext, process: str) -> AsyncIterator[_Member]:
        member = _Member(ctx, process, f"{process}-{next(self._member_numbers)}")
        try:
            await member.start()
            yield member
        finally:
            await member.close()

    # ---------------------------------------------------------------- the end

    async def _share_at_end(self, ctx: WorkloadContext, rng: random.Random) -> None:
        assert self._modes is not None
        async with AsyncExitStack() as stack:
            members = [
                await stack.enter_async_context(self._open_member(ctx, f"{LAST}-{number}")) for number in range(MEMBERS)
            ]
            for mode in (RequestMode.POP, RequestMode.PULL):
                for broker_group in self._names:
                    await self._set_until_answered(broker_group, mode)
                for broker_group in self._names:
                    nodes = [node for node in ctx.nodes if node.group == broker_group]
                    await _wait_until_shared(members, nodes, sorted(self._names), mode, rng)
                    await self._modes.read(FINAL, broker_group, GROUP, None, seconds=_FINAL_READ_SECONDS)

    async def _set_until_answered(self, broker_group: str, mode: RequestMode) -> None:
        """Repeat setting the mode of the group that has members, until the answer is success."""
        assert self._modes is not None
        while True:
            if await self._modes.write(FINAL, broker_group, GROUP, None, mode, 0):
                return
            await asyncio.sleep(_POLL_SECONDS)


class _Member:
    """A member of the group: it sends heartbeats to every node, and asks for its queues."""

    def __init__(self, ctx: WorkloadContext, process: str, client_id: str) -> None:
        self._ctx = ctx
        self._process = process
        subscriptions = {TOPIC: subscription(TOPIC, SUBSCRIBE_ALL, 1)}
        heartbeat = partial(heartbeat_of, client_id, GROUP, subscriptions, broadcast=False, from_first=True)
        self._core = ClientCore(ctx.namesrv, client_id=client_id, heartbeat=heartbeat)

    async def start(self) -> None:
        """Send a heartbeat to every node."""
        self._core.start()
        await self._core.beat_now([node.client for node in self._ctx.nodes])

    async def close(self) -> None:
        """End all connections."""
        await self._core.close()

    async def ask(self, node: NodeAddresses, f: str = "assign") -> Sequence[QueueAssignment] | None:
        """Ask which queues to consume (400). None if the member keeps its queues, or without an answer."""
        invocation = self._ctx.recorder.invoke(NAME, self._process, f, f"{GROUP}@{node.group}")
        body = encode_body(QueryAssignmentBody(TOPIC, GROUP, self._core.client_id, "AVG"))
        deadline = self._core.loop.time() + _ANSWER_SECONDS
        try:
            answer = check_response(
                await self._core.call(node.client, RequestCode.QUERY_ASSIGNMENT, {}, body, deadline=deadline)
            )
        except ClientError as error:
            invocation.fail(str(error))
            return None
        rows = decode_body(AssignmentsBody, bytes(answer.body)).message_queue_assignments
        invocation.ok(None if rows is None else [[row.mode, name_of(row.message_queue)] for row in rows])
        return rows


async def _keep_asking(ctx: WorkloadContext, member: _Member, rng: random.Random) -> None:
    while True:
        await member.ask(rng.choice(ctx.nodes))
        await asyncio.sleep(_PAUSE_SECONDS)


async def _wait_until_shared(
    members: Sequence[_Member],
    nodes: Sequence[NodeAddresses],
    broker_groups: Sequence[str],
    mode: RequestMode,
    rng: random.Random,
) -> None:
    """Let all members ask any node, until they share the queues in this mode."""
    while True:
        shares = [await member.ask(rng.choice(nodes), f"settle-{mode}") for member in members]
        share_rows = [[[row.mode, name_of(row.message_queue)] for row in share or ()] for share in shares]
        if shared(share_rows, broker_groups, mode):
            return
        await asyncio.sleep(_POLL_SECONDS)


def name_of(queue: QueueName) -> str:
    """Return a queue's name in histories."""
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def queues_of(broker_groups: Iterable[str], mode: str) -> frozenset[str]:
    """Return the names of the topic's queues in assignments."""
    ids = (ALL_QUEUES,) if mode == RequestMode.POP else range(QUEUES)
    return frozenset(f"{TOPIC}/{group}/{queue_id}" for group in broker_groups for queue_id in ids)


def shared(shares: Sequence[Sequence[Sequence[str]]], broker_groups: Iterable[str], mode: str) -> bool:
    """Return True if members share the topic: in mode POP each has all queues, in mode PULL each has its own queues."""
    if any(how != mode for share in shares for how, _ in share):
        return False
    queues = sorted(queues_of(broker_groups, mode))
    if mode == RequestMode.POP:
        return all(sorted(queue for _, queue in share) == queues for share in shares)
    return all(shares) and sorted(queue for share in shares for _, queue in share) == queues


ENTRY: Final = WorkloadEntry(
    NAME,
    "a consumer group whose members ask the brokers for their queues, and request modes that are set and read",
    "broker",
    AssignmentsWorkload,
)
