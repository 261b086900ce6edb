"""Topics and consumer groups that are created, deleted and looked up while leaders change.

Only one client uses a name, with one operation after the other. An operation without an answer may have taken effect,
or may take effect later.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from typing import Final

from dledger_client import Admin, ClientError, NotFoundError
from dledger_remoting.topics import SubscriptionGroupConfig

from .base import WorkloadContext, WorkloadEntry

NAME: Final = "catalogue"
CLIENTS: Final = 4
OPERATIONS_PER_NAME: Final = 12
"""Number of operations after which a client uses another name."""

_DEADLINE_SECONDS: Final = 5.0
_FINAL_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.1


class CatalogueWorkload:
    """Clients of the workload `catalogue`, as the module describes it."""

    name = NAME

    def __init__(self) -> None:
        self._keys: list[str] = []

    async def setup(self, ctx: WorkloadContext) -> None:
        """Do nothing: no topic or group has to exist."""

    async def run(self, ctx: WorkloadContext) -> None:
        """Create, delete and read until the end."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(CLIENTS):
                tasks.create_task(self._use_names(ctx, number, random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Read everything once more."""
        async with Admin(ctx.namesrv, timeout=_FINAL_SECONDS) as admin:
            for key in self._keys:
                await _operate(ctx, admin, "final", "read", key)

    async def _use_names(self, ctx: WorkloadContext, number: int, rng: random.Random) -> None:
        async with Admin(ctx.namesrv, timeout=_DEADLINE_SECONDS) as admin:
            names = 0
            while not ctx.stopping.is_set():
                kind = rng.choice(("topic", "group"))
                key = f"{kind}:chaos-catalogue-{number}-{names}"
                names += 1
                self._keys.append(key)
                for _ in range(OPERATIONS_PER_NAME):
                    f = rng.choices(("create", "delete", "read"), (3, 2, 4))[0]
                    await _operate(ctx, admin, f"client-{number}", f, key)
                    await asyncio.sleep(_PAUSE_SECONDS)
                    if ctx.stopping.is_set():
                        break


async def _operate(ctx: WorkloadContext, admin: Admin, process: str, f: str, key: str) -> None:
    """Run and record an operation: `create` and `delete` write true and false, `read` finds true or false."""
    kind, _, name = key.partition(":")
    value = None if f == "read" else f == "create"
    invocation = ctx.recorder.invoke(NAME, process, f, key, value)
    try:
        if f == "read":
            invocation.ok(await _exists(admin, kind, name))
        else:
            await _change(admin, f, kind, name)
            invocation.ok()
    except ClientError as error:
        invocation.info(str(error))


def _change(admin: Admin, f: str, kind: str, name: str) -> Awaitable[None]:
    if kind == "topic":
        return admin.create_topic(name, queues=1) if f == "create" else admin.delete_topic(name)
    return admin.create_group(SubscriptionGroupConfig(name)) if f == "create" else admin.delete_group(name)


async def _exists(admin: Admin, kind: str, name: str) -> bool:
    if kind == "group":
        return name in await admin.groups()
    try:
        await admin.topic_config(name)
    except NotFoundError:
        return False
    return True


ENTRY: Final = WorkloadEntry(
    NAME, "topics and consumer groups that are created, deleted and looked up", "broker", CatalogueWorkload
)
