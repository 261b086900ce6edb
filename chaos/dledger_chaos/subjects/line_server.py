"""The TCP port of a subject. A request is one line of JSON (UTF-8, at most 1 MiB), and so is an answer.

| request | `value` of an ok answer |
|---|---|
| `{"id": 1, "op": "read", "key": "x"}` | the register's value, the log's values in order, or null |
| `{"id": 2, "op": "write", "key": "x", "value": 5}` | null |
| `{"id": 3, "op": "cas", "key": "x", "value": [5, 6]}` | true if it replaced 5 by 6, false if the value was another |
| `{"id": 4, "op": "append", "key": "l", "value": "v7"}` | the value's index in the log, from 0 |
| `{"id": 5, "op": "status"}` | node_id, role, term, leader_id, ready, voters, commit_index, applied_index |
| `{"id": 6, "op": "dump"}` | registers, logs, history (a digest of all commands in order) as applied on this node |

An answer is `{"id": 1, "ok": true, "value": 5}`, or `{"id": 1, "ok": false, "outcome": …, "error": …, "leader": "b"}`.
With the outcome `fail`, the request never takes effect. With `info`, it may have taken effect, may do so later, or
never. `leader` is present if one is known. Requests of a connection run concurrently. Their answers come in any order
and repeat the `id`. When a connection ends, its unanswered requests have the outcome `info`.

`read`, `write`, `cas` and `append` are linearizable; `status` and `dump` are this node's own view and promise nothing.
Values are any JSON. A key that was appended to is a log from then on: `write` and `cas` on it `fail`.
"""

from __future__ import annotations

import asyncio
import json
from typing import NamedTuple, Protocol

from dledger_chaos.subjects.registers import WRITES, Json

MAX_LINE_BYTES = 1 << 20
MAX_RUNNING = 1024
"""Maximum number of requests of a connection that run at the same time. Further requests wait in its socket."""

FAIL = "fail"
"""Outcome of a request that never takes effect."""
INFO = "info"
"""Outcome of a request that may have taken effect, may take effect later, or never."""


class Answer(NamedTuple):
    """Answer to a client. `outcome` is None if `ok`, else `FAIL` or `INFO`."""

    ok: bool
    value: Json = None
    outcome: str | None = None
    leader: str | None = None
    error: str | None = None

    def to_json(self, number: Json) -> dict[str, Json]:
        """Return the answer as a line. Fields that are None are left out, except the value of an ok answer."""
        line: dict[str, Json] = {"id": number, "ok": self.ok}
        if self.ok or self.value is not None:
            line["value"] = self.value
        texts = {"outcome": self.outcome, "leader": self.leader, "error": self.error}
        return line | {name: text for name, text in texts.items() if text is not None}


class Subject(Protocol):
    """A replicated map as its port sees it."""

    async def read(self, key: str) -> Answer:
        """Return the newest value."""

    async def write(self, operation: str, key: str, value: Json) -> Answer:
        """Execute `write`, `cas` or `append`."""

    def status(self) -> dict[str, Json]:
        """Return this node's present state, from its own memory."""

    def dump(self) -> dict[str, Json]:
        """Return the whole state that this node has applied, from its own memory."""


class LineServer:
    """Serves a subject on `address`; `start` raises `OSError` if it is in use."""

    def __init__(self, subject: Subject, address: tuple[str, int]) -> None:
        self._subject = subject
        self._address = address
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def address(self) -> tuple[str, int]:
        """The address at which it listens."""
        return self._address

    async def start(self) -> None:
        """Begin to listen. Port 0 becomes a free port."""
        self._server = await asyncio.start_server(self._serve_connection, *self._address, limit=MAX_LINE_BYTES)
        host, port = self._server.sockets[0].getsockname()[:2]
        self._address = (host, port)

    async def stop(self) -> None:
        """Close the port and all connections. Their running requests are cancelled."""
        if self._server is not None:
            self._server.close()
        for writer in self._connections.values():
            writer.transport.abort()  # cancelling the task instead would make Python 3.11 print an error
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._connections[task] = writer
            task.add_done_callback(self._connections.pop)
        running: set[asyncio.Task[None]] = set()
        room = asyncio.Semaphore(MAX_RUNNING)
        try:
            while line := await reader.readline():
                await room.acquire()
                request = asyncio.create_task(self._serve_request(line, writer))
                running.add(request)
                request.add_done_callback(running.discard)
                request.add_done_callback(lambda _: room.release())
        except (ConnectionError, ValueError):
            pass  # the client has gone, or a line is too long, so that the next line cannot be found
        finally:
            for request in running:
                request.cancel()
            writer.close()

    async def _serve_request(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        number: Json = None
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise TypeError("a request is an object")
            number = request.get("id")
            answer = await self._execute(request)
        except (ValueError, TypeError, KeyError) as error:
            answer = Answer(ok=False, outcome=FAIL, error=f"bad request: {error!r}")
        if not writer.is_closing():
            writer.write(json.dumps(answer.to_json(number), separators=(",", ":")).encode() + b"\n")

    async def _execute(self, request: dict[str, Json]) -> Answer:
        operation = request["op"]
        if operation == "status":
            return Answer(ok=True, value=self._subject.status())
        if operation == "dump":
            return Answer(ok=True, value=self._subject.dump())
        key = request["key"]
        if not isinstance(key, str):
            raise TypeError("a key is a string")
        if operation == "read":
            return await self._subject.read(key)
        if operation not in WRITES or not isinstance(operation, str):
            raise ValueError(f"op is {operation!r}: use read, write, cas, append, status or dump")
        value = request["value"]
        if operation == "cas" and not (isinstance(value, list) and len(value) == 2):
            raise ValueError("the value of cas is [expected, new]")
        return await self._subject.write(operation, key, value)
