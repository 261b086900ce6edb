"""Linearizable registers and logs on nodes that speak the line protocol of `subjects`.

Five clients work on a few keys at a time; after a number of operations a key is left for a new one, so that the search
of the linearizability checker stays short. Each client asks the node that it believes to lead, and looks for another
when that one does not answer. One more reader for each node asks that node only, whatever it says or does not say: only
such clients are there when a node believes that it leads and nobody else does.

| function | key | value | extras of an ok |
|---|---|---|---|
| `read` | key | the value or values read | |
| `write` | `register-<n>` | a value, each written once | |
| `cas` | `register-<n>` | [expected, new] | `swapped`: whether it was as expected |
| `append` | `log-<n>` | a value, each appended once | `place`: where it stands |
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
"""A key is also left after this many operations of unknown outcome: each doubles what the checker may have to try."""

DEADLINE_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 0.005
_REFUSED_PAUSE_SECONDS: Final = 0.05
_READER_PAUSE_SECONDS: Final = 0.02
_FINAL_READ_SECONDS: Final = 30.0
"""How long one key is asked for at the end; it takes long only if something is wrong."""


class _Keys:
    """The keys in use, and how much they have been used."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._numbers = count()
        self._left: dict[str, int] = {}
        self._unknown: dict[str, int] = {}
        self.last: dict[str, Json] = {}
        """The last value written to a register, as far as a client knows: what a cas may well expect."""
        self.used: list[str] = []

    def pick(self) -> str:
        """A key for the next operation."""
        key = self.any()
        self._left[key] -= 1
        if not self._left[key]:
            self._leave(key)
        return key

    def any(self) -> str:
        """A key in use, for an operation that does not count."""
        while len(self._left) < LIVE_KEYS:
            number = next(self._numbers)
            key = f"{'log' if number % 3 == 2 else 'register'}-{number}"
            self._left[key] = OPERATIONS_PER_KEY
            self._unknown[key] = 0
            self.used.append(key)
        return self._rng.choice(list(self._left))

    def unknown(self, key: str) -> None:
        """An operation on a key ended without an answer."""
        if key in self._unknown:
            self._unknown[key] += 1
            if self._unknown[key] >= UNKNOWN_PER_KEY:
                self._leave(key)

    def _leave(self, key: str) -> None:
        del self._left[key], self._unknown[key]


class RegisterWorkload:
    """See the module."""

    name = NAME

    def __init__(self) -> None:
        self._keys: _Keys | None = None
        self._values = count(1)

    async def setup(self, ctx: WorkloadContext) -> None:
        """Nothing is asked yet; connections are made when they are needed."""
        self._keys = _Keys(random.Random(ctx.rng.random()))

    async def run(self, ctx: WorkloadContext) -> None:
        """Read, write, swap and append until the end."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(CLIENTS):
                tasks.create_task(self._work(ctx, f"client-{number}", random.Random(ctx.rng.random())))
            for node in ctx.nodes:
                tasks.create_task(self._read(ctx, node.node_id, random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Read every key once more: what was acknowledged last must show."""
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

    async def _work(self, ctx: WorkloadContext, process: str, rng: random.Random) -> None:
        assert self._keys is not None
        keys = self._keys
        client = _Client(ctx, process, rng, keys)
        try:
            while not ctx.stopping.is_set():
                key = keys.pick()
                f, value = self._choose(key, rng)
                answered = await client.operate(f, key, value)
                await asyncio.sleep(_PAUSE_SECONDS if answered else _REFUSED_PAUSE_SECONDS)
        finally:
            await client.close()

    async def _read(self, ctx: WorkloadContext, node_id: str, rng: random.Random) -> None:
        assert self._keys is not None
        client = _Client(ctx, f"reader-{node_id}", rng, node_id=node_id)
        try:
            while not ctx.stopping.is_set():
                await client.operate("read", self._keys.any(), None)
                await asyncio.sleep(_READER_PAUSE_SECONDS)
        finally:
            await client.close()

    def _choose(self, key: str, rng: random.Random) -> tuple[str, Json]:
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
    """One process of the history: one operation at a time, at the node that it believes to lead or at `node_id`."""

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
        self._addresses = {node.node_id: _split(node.client) for node in ctx.nodes}
        self._connections = {node: SubjectClient(address) for node, address in self._addresses.items()}
        self._process = process
        self._rng = rng
        self._keys = keys
        self._stays = node_id is not None
        self._node = node_id or rng.choice(sorted(self._addresses))

    async def operate(self, f: str, key: str, value: Json) -> bool:
        """One operation, recorded; whether it was answered."""
        invocation = self._recorder.invoke(NAME, self._process, f, key, value, node=self._node)
        answer = await self._connections[self._node].call(f, key, value, timeout_s=DEADLINE_SECONDS)
        if answer.ok:
            self._note(f, key, value, answer)
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
        if not self._stays:
            self._node = self._successor(answer.leader)
        return False

    async def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            await connection.close()

    def _note(self, f: str, key: str, value: Json, answer: Answer) -> None:
        if self._keys is None or f == "append":
            return
        if f == "read":
            self._keys.last[key] = answer.value
        elif f == "write":
            self._keys.last[key] = value
        elif answer.value is True and isinstance(value, list):
            self._keys.last[key] = value[1]

    def _successor(self, leader: str | None) -> str:
        if leader in self._addresses and leader != self._node:
            return leader
        return self._rng.choice([node for node in sorted(self._addresses) if node != self._node])


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


ENTRY: Final = WorkloadEntry(
    NAME, "linearizable registers and logs: read, write, compare-and-set, append", "register", RegisterWorkload
)
