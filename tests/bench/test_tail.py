"""Consumers that wait at the end of a queue get every message of their queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench.compiler import TAIL_SOURCE, NoCompilerError, build_generator
from bench.generator import Load, LoadResult, run_load
from bench.tailing import Tail, run_tail
from dledger_broker.node import Broker
from tests.broker.broker_in_process import node_config

TOPIC = "tail"
QUEUES = 4


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("build")
    try:
        return build_generator(directory), build_generator(directory, TAIL_SOURCE)
    except NoCompilerError as error:
        pytest.skip(str(error))


@asynccontextmanager
async def broker(directory: Path) -> AsyncIterator[int]:
    node = Broker(node_config(directory), bootstrap=True)
    await node.start()
    try:
        async with asyncio.timeout(60):
            while not node.group.ready:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        yield node.config.port
    finally:
        await node.stop()


async def tail(program: Path, port: int, consumers: int) -> LoadResult:
    load = Tail(rate_per_s=100, consumers=consumers, queues=QUEUES)
    return await asyncio.to_thread(run_tail, program, load, port=port, topic=TOPIC, seconds=1.0, warmup_s=0.2)


async def test_each_message_reaches_all_consumers_of_its_queue(programs: tuple[Path, Path], tmp_path: Path) -> None:
    generator, program = programs
    async with broker(tmp_path) as port:
        load = Load(window=1, queues=QUEUES)
        await asyncio.to_thread(run_load, generator, load, port=port, topic=TOPIC, seconds=30.0, messages=3)
        result = await tail(program, port, consumers=3 * QUEUES)
    assert result.errors == {}
    sent = 120  # the number of messages due within warm-up and measured time
    assert result.acknowledged_total <= 3 * sent + 3 * QUEUES, "the three messages before were not read"
    assert result.messages > 2 * 100 * 0.5, "most of what was due has been received three times"
    assert 0 < result.p50_us <= result.p99_us <= result.max_us
