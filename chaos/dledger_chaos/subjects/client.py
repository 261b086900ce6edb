"""An asyncio client of one subject's port."""

from __future__ import annotations

import asyncio
import json
from itertools import count
from types import TracebackType
from typing import Self

from dledger_chaos.subjects.line_server import FAIL, INFO, MAX_LINE_BYTES, Answer
from dledger_chaos.subjects.registers import Json


class SubjectClient:
    """One connection, opened by the first call and again after it broke. Calls may run concurrently.

    `call` never raises for an error of the node or the network, but returns an outcome.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._writer: asyncio.StreamWriter | None = None
        self._reader_task: asyncio.Task[None] | None = None
        self._pending_answers: dict[int, asyncio.Future[Answer]] = {}
        self._numbers = count(1)
        self._connect_lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def call(self, operation: str, key: str | None = None, value: Json = None, *, timeout_s: float) -> Answer:
        """Send a request once. Return `fail` if it certainly was not sent, `info` without an answer in time."""
        number = next(self._numbers)
        line = {"id": number, "op": operation, "key": key, "value": value}
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    writer = await self._connect()
                except OSError as error:
                    return Answer(ok=False, outcome=FAIL, error=f"not connected: {error}")
                self._pending_answers[number] = future
                writer.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
                return await future
        except TimeoutError:
            sent = number in self._pending_answers
            return Answer(ok=False, outcome=INFO if sent else FAIL, error=f"no answer within {timeout_s} s")
        finally:
            self._pending_answers.pop(number, None)

    async def close(self) -> None:
        """Close the connection. Calls that still wait get the outcome `info`."""
        if self._reader_task is not None:
            self._reader_task.cancel()
            await asyncio.gather(self._reader_task, return_exceptions=True)

    async def _connect(self) -> asyncio.StreamWriter:
        async with self._connect_lock:
            if self._writer is None:
                reader, self._writer = await asyncio.open_connection(*self._address, limit=MAX_LINE_BYTES)
                self._reader_task = asyncio.create_task(self._read_answers(reader, self._writer))
            return self._writer

    async def _read_answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                answer = json.loads(line)
                future = self._pending_answers.get(answer["id"])
                if future is not None and not future.done():
                    future.set_result(
                        Answer(
                            answer["ok"],
                            answer.get("value"),
                            answer.get("outcome"),
                            answer.get("leader"),
                            answer.get("error"),
                        )
                    )
        except OSError:
            pass  # handled like the end of the connection
        finally:
            self._writer = None
            writer.close()
            for future in self._pending_answers.values():
                if not future.done():
                    future.set_result(Answer(ok=False, outcome=INFO, error="the connection ended before the answer"))
