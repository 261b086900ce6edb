"""Linearizable registers and logs on nodes that speak the line protocol of `subjects`.

Five clients work on a few keys at a time. After a number of operations a new key replaces a key, so that the search of
the linearizability checker stays short. Each client asks the supposed leader, and changes to another node if that node
does not answer with success. In addition, one reader for each node asks this node only. Only these readers notice a
node that wrongly believes that it leads.

| function | key | value | extras of an ok |
|---|---|---|---|
| `read` | any | value of the register, or list of the log's values | |
| `write` | `register-<n>` | unique value | |
| `cas` | `register-<n>` | [expected value, new unique value] | `swapped`: true if the expected value was found |
| `append` | `log-<n>` | unique value | `place`: index of the value in the log |
"""

from __future__ import annotations

import asyncio
import random
from itertools import count
from typing import Final

from dledger_chaos.history import Recorder
from dledger_chaos.subjects.client import SubjectClient
from dledger_chaos.subjects.line_server import FAIL, Answer
from dledger_chaos.subjects.registers import Json

from .base import WorkloadContext, WorkloadEntry

NAME: Final = "registers"
CLIENTS: Final = 5
LIVE_KEYS: Final = 4
OPERATIONS_PER_KEY: Final = 60
UNKNOWN_PER_KEY: Final = 6
"""Maximum number of operations of unknown outcome for one key. Each may double the work of the checker."""

DEADLINE_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 0.005
_REFUSED_PAUSE_SECONDS: Final = 0.05
_READER_PAUSE_SECONDS: Final = 0.02
_FINAL_READ_SECONDS: Final = 30.0
"""Time limit for the final read of one key. It is slow only if something is wrong."""


class _Keys:
    """The keys in use, and the number of operations left for each."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._numbers = count()
        self._operations_left: dict[str, int] = {}
        self._unknown_outcomes: dict[str, int] = {}
        self.last: dict[str, Json] = {}
        """The last known value of each register, which a `cas` expects."""
        self.used: list[str] = []

    def pick(self) -> str:
        """Return a key for the next operation."""
        key = self.any()
        self._operations_left[key] -= 1
        if not self._operations_left[key]:
            self._retire_key(key)
        return key

    def any(self) -> str:
        """Return a key in use, without counting an operation."""
        while len(self._operations_left) < LIVE_KEYS:
            number = next(self._numbers)
            key = f"{'log' if number % 3 == 2 else 'register'}-{number}"
            self._operations_left[key] = OPERATIONS_PER_KEY
            self._unknown_outcomes[key] = 0
            self.used.append(key)
        return self._rng.choice(list(self._operations_left))

    def unknown(self, key: str) -> None:
        """Note that the outcome of an operation on a key is unknown."""
        if key in self._unknown_outcomes:
            self._unknown_outcomes[key] += 1
            if self._unknown_outcomes[key] >= UNKNOWN_PER_KEY:
                self._retire_key(key)

    def _retire_key(self, key: str) -> None:
        del self._operations_left[key], self._unknown_outcomes[key]


class RegisterWorkload:
    """Clients of the workload `registers`, as the module describes it."""

    name = NAME

    def __init__(self) -> None:
        self._keys: _Keys | None = None
        self._values = count(1)

    async def setup(self, ctx: WorkloadContext) -> None:
        """Do nothing: connections are made when they are needed."""
        self._keys = _Keys(random.Random(ctx.rng.random()))

    async def run(self, ctx: WorkloadContext) -> None:
        """Read, write, swap and append until the end."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(CLIENTS):
                tasks.create_task(self._run_client(ctx, f"client-{number}", random.Random(ctx.rng.random())))
            for node in ctx.nodes:
                tasks.create_task(self._run_reader(ctx, node.node_id, random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Read every key once more, so that the last acknowledged operations are checked."""
        assert self._keys is not None
        client, loop = _Client(ctx, "final", random.Random(ctx.rng.random())), asyncio.get_running_loop()
        try:
            for key in self._keys.used:
                deadline = loop.time() + _FINAL_READ_SECONDS
                answered = await client.operate("read", key, None)
                while not answered and loop.time() < deadline:
                    await asyncio.sleep(_REFUSED_PAUSE_SECONDS)
                    answered = await client.operate("read", key, None)
        finally:
            await client.close()

    async def _run_client(self, ctx: WorkloadContext, process: str, rng: random.Random) -> None:
        assert self._keys is not None
        keys = self._keys
        client = _Client(ctx, process, rng, keys)
        try:
            while not ctx.stopping.is_set():
                key = keys.pick()
                f, value = self._draw_operation(key, rng)
                answered = await client.operate(f, key, value)
                await asyncio.sleep(_PAUSE_SECONDS if answered else _REFUSED_PAUSE_SECONDS)
        finally:
            await client.close()

    async def _run_reader(self, ctx: WorkloadContext, node_id: str, rng: random.Random) -> None:
        assert self._keys is not None
        client = _Client(ctx, f"reader-{node_id}", rng, node_id=node_id)
        try:
            while not ctx.stopping.is_set():
                await client.operate("read", self._keys.any(), None)
                await asyncio.sleep(_READER_PAUSE_SECONDS)
        finally:
            await client.close()

    def _draw_operation(self, key: str, rng: random.Random) -> tuple[str, Json]:
        assert self._keys is not None
        if rng.random() < 0.45:
            return "read", None
        value = next(self._values)
        if key.startswith("log"):
            return "append", value
        if rng.random() < 0.5:
            return "write", value
        return "cas", [self._keys.last.get(key), value]


class _Client:
    """One process of the history. It sends one operation at a time to the supposed leader, or always to `node_id`."""

    def __init__(
        self,
        ctx: WorkloadContext,
        process: str,
        rng: random.Random,
        keys: _Keys | None = None,
        *,
        node_id: str | None = None,
    ) -> None:
        self._recorder: Recorder = ctx.recorder
        self._addresses = {node.node_id: _split_address(node.client) for node in ctx.nodes}
        self._connections = {node: SubjectClient(address) for node, address in self._addresses.items()}
        self._process = process
        self._rng = rng
        self._keys = keys
        self._is_pinned = node_id is not None
        self._node = node_id or rng.choice(sorted(self._addresses))

    async def operate(self, f: str, key: str, value: Json) -> bool:
        """Run one operation and record it. Return True if it succeeded."""
        invocation = self._recorder.invoke(NAME, self._process, f, key, value, node=self._node)
        answer = await self._connections[self._node].call(f, key, value, timeout_s=DEADLINE_SECONDS)
        if answer.ok:
            self._remember_value(f, key, value, answer)
            if f == "read":
                invocation.ok(answer.value)
            elif f == "append":
                invocation.ok(place=answer.value)
            elif f == "cas":
                invocation.ok(swapped=answer.value)
            else:
                invocation.ok()
            return True
        if answer.outcome == FAIL:
            invocation.fail(answer.error or "")
        else:
            invocation.info(answer.error or "")
            if self._keys is not None:
                self._keys.unknown(key)
        if not self._is_pinned:
            self._node = self._choose_node(answer.leader)
        return False

    async def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            await connection.close()

    def _remember_value(self, f: str, key: str, value: Json, answer: Answer) -> None:
        if self._keys is None or f == "append":
            return
        if f == "read":
            self._keys.last[key] = answer.value
        elif f == "write":
            self._keys.last[key] = value
        elif answer.value is True and isinstance(value, list):
            self._keys.last[key] = value[1]

    def _choose_node(self, leader: str | None) -> str:
        if leader in self._addresses and leader != self._node:
            return leader
        return self._rng.choice([node for node in sorted(self._addresses) if node != self._node])


def _split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


ENTRY: Final = WorkloadEntry(
    NAME,
    "linearizable registers and logs, read, written, compared and set, appended to; one more reader for every node",
    "register",
    RegisterWorkload,
)
