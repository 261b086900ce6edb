"""RocketMQ's unmodified C++ client, which PyPI's `rocketmq` wraps, as producer and consumer.

It runs in a process of its own (`cpp_driver`), which is killed and started again now and then. The topic has one queue,
because the client does not report in which queue a message was stored. The client repeats sends by itself.
"""

from __future__ import annotations

import asyncio
import os
import platform
import random
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from dledger_chaos.history import Invocation, Recorder
from dledger_client import Admin, MessageQueue

from .base import WorkloadContext, WorkloadEntry
from .reading import TopicReader
from .records import Seen, Stored

NAME: Final = "cpp"
TOPIC: Final = "chaos-cpp"
GROUP: Final = "chaos-cpp"
DRIVER: Final = Path(__file__).with_name("cpp_driver.py")

_LIFE_SECONDS: Final = (20.0, 60.0)
_END_SECONDS: Final = 30.0
_DELIVER_SECONDS: Final = 90.0
_POLL_SECONDS: Final = 0.1


class _Line(msgspec.Struct, frozen=True):
    """A line of the driver's output."""

    ns: int
    begin: str | None = None
    end: str | None = None
    deliver: str | None = None
    offset: int = -1
    queue_id: int = 0
    error: str = ""


class CppWorkload:
    """Clients of the workload `cpp`, as the module describes it."""

    name = NAME

    def __init__(self) -> None:
        self._queue: MessageQueue | None = None
        self._client: _Client | None = None

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make the topic."""
        group = min(node.group for node in ctx.nodes)
        async with Admin(ctx.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=1, broker_groups=[group])
        self._queue = MessageQueue(TOPIC, group, 0)
        self._client = _Client(ctx, self._queue)

    async def run(self, ctx: WorkloadContext) -> None:
        """Keep one process running. Kill it now and then, and start another one."""
        assert self._client is not None
        rng = random.Random(ctx.rng.random())
        await self._client.start()
        while not ctx.stopping.is_set():
            try:
                async with asyncio.timeout(rng.uniform(*_LIFE_SECONDS)):
                    await self._client.ended_or(ctx.stopping)
            except TimeoutError:
                pass
            if not ctx.stopping.is_set():
                await self._client.kill()
                await self._client.start()
        await self._client.stop_sending()

    async def finish(self, ctx: WorkloadContext) -> None:
        """Wait until everything acknowledged has been delivered; read the queue from every node."""
        if self._client is not None:
            await self._client.wait_delivered(_DELIVER_SECONDS)
            await self._client.close()
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            await reader.scan(TOPIC, ctx)


class _Client:
    """The driver's processes, one after another, and their output."""

    def __init__(self, ctx: WorkloadContext, queue: MessageQueue) -> None:
        self._recorder: Recorder = ctx.recorder
        self._namesrv = ctx.namesrv
        self._directory = ctx.directory
        self._queue = queue
        self._process_count = 0
        self._process: asyncio.subprocess.Process | None = None
        self._reader_task: asyncio.Task[None] | None = None
        self._pending_sends: dict[str, Invocation] = {}
        self._acknowledged: set[str] = set()
        self._delivered: set[str] = set()

    async def start(self) -> None:
        """Start a process. Its home directory, into which the library logs, is the workload's directory."""
        name = f"p{self._process_count}"
        self._process_count += 1
        with (self._directory / "stderr.txt").open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, str(DRIVER), self._namesrv, TOPIC, GROUP, name, "0"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "HOME": str(self._directory)},
            )
        assert self._process.stdout is not None
        self._reader_task = asyncio.create_task(self._read_lines(name, self._process.stdout))

    async def ended_or(self, stopping: asyncio.Event) -> None:
        """Wait until the process has ended by itself, or `stopping` is set."""
        assert self._reader_task is not None
        waiting = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait((self._reader_task, waiting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    async def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        await self._wait_ended()

    async def stop_sending(self) -> None:
        """Stop the process from sending; it only consumes from then on."""
        if self._process is not None and self._process.stdin is not None and self._process.returncode is None:
            self._process.stdin.write(b"stop-sending\n")

    async def close(self) -> None:
        """Close the standard input of the process. Kill the process if it does not end then."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await self._wait_ended()
            except TimeoutError:
                await self.kill()

    async def wait_delivered(self, seconds: float) -> None:
        """Wait until all acknowledged messages have been delivered, for `seconds` at most."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while loop.time() < deadline:
            if self._acknowledged <= self._delivered:
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def _wait_ended(self) -> None:
        if self._process is not None:
            await self._process.wait()
        if self._reader_task is not None:
            await self._reader_task

    async def _read_lines(self, process: str, lines: asyncio.StreamReader) -> None:
        decoder = msgspec.json.Decoder(_Line)
        while text := await lines.readline():
            if not text.endswith(b"\n"):
                break  # the process was killed while it wrote the line
            self._handle_line(process, decoder.decode(text))
        for invocation in self._pending_sends.values():
            invocation.info("the client was killed")
        self._pending_sends.clear()

    def _handle_line(self, process: str, line: _Line) -> None:
        if line.begin is not None:
            self._pending_sends[line.begin] = self._recorder.invoke(
                NAME, process, "send-repeating", TOPIC, line.begin, at_ns=line.ns
            )
        elif line.end is not None:
            invocation = self._pending_sends.pop(line.end)
            invocation.at(line.ns)
            if line.error:
                invocation.info(line.error)
            else:
                invocation.ok(**msgspec.structs.asdict(Stored(str(self._queue), line.offset)))
                self._acknowledged.add(line.end)
        elif line.deliver is not None:
            delivery = self._recorder.invoke(NAME, process, "deliver", str(self._queue), at_ns=line.ns)
            delivery.at(line.ns)
            delivery.ok(Seen(line.offset, line.deliver, -1))
            self._delivered.add(line.deliver)


def _find_obstacle() -> str:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "the only wheel of PyPI's rocketmq is for Linux on x86-64"
    return "" if find_spec("rocketmq") is not None else "PyPI's rocketmq is not installed"


ENTRY: Final = WorkloadEntry(
    NAME,
    "the unmodified C++ client as producer and consumer, whose process is killed now and then",
    "broker",
    CppWorkload,
    unavailable=_find_obstacle,
)
