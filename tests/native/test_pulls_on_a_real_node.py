"""On a real broker and disk, pulls that the native part reads from files get the same as a single pull."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from dledger_base.native_part import Ask, Found
from dledger_broker.features.pulling.requests import PullRequests
from dledger_broker.features.pulling.turn_reads import TurnReads
from dledger_broker.node import Broker
from dledger_remoting.command import RemotingCommand
from tests.broker.broker_in_process import Client, node_config, running

pytest.importorskip("dledger_native", reason="the native part is not built (make native)")
native = importlib.import_module("dledger_native")

QUEUES: Final = 4
MESSAGES: Final = 400
"""Number of messages in each queue, of 1 KB. Together they exceed a segment of 1 MiB."""
STEP: Final = 25


class Counting:
    """Native part that counts the pulls that get records from it, and those of them whose units are in files."""

    def __init__(self) -> None:
        self.answered = self.from_files = 0

    def read_pulls(self, asks: Sequence[Ask], log: tuple[int, int, int], first_position: int) -> list[Found | None]:
        found: list[Found | None] = native.read_pulls(asks, log, first_position)
        answered = [ask for ask, one in zip(asks, found, strict=True) if one is not None and one[4] is not None]
        self.answered += len(answered)
        self.from_files += sum(ask[0] is None for ask in answered)
        return found


def reads_of(broker: Broker) -> TurnReads:
    return broker.service.parts[PullRequests]._turn_reads


async def fill(port: int) -> None:
    client = await Client.connect(port)
    for number in range(MESSAGES):
        for queue_id in range(QUEUES):
            answer = await client.send(b"%d %d %s" % (queue_id, number, bytes(1000)), e=str(queue_id))
            assert answer.code == 0
    client.close()


async def until_units_are_in_files_alone(broker: Broker) -> None:
    queues = broker.state.topics["T1"].queues.values()
    async with asyncio.timeout(20):
        while any(queue.view.tail for queue in queues):  # noqa: ASYNC110 - a timer of the broker, without event
            await asyncio.sleep(0.05)


async def pull_all(port: int) -> list[list[tuple[int, str, bytes]]]:
    """Return the answers to the pulls of each queue. The pulls of all queues are sent together."""
    clients = [await Client.connect(port) for _ in range(QUEUES)]
    answers: list[list[tuple[int, str, bytes]]] = [[] for _ in clients]
    for offset in range(0, MESSAGES, STEP):
        pulls = [
            client.pull(offset, queueId=str(queue_id), maxMsgNums=str(STEP)) for queue_id, client in enumerate(clients)
        ]
        for queue_id, answer in enumerate(await asyncio.gather(*pulls)):
            answers[queue_id].append(told(answer))
    for client in clients:
        client.close()
    return answers


def told(answer: RemotingCommand) -> tuple[int, str, bytes]:
    return answer.code, answer.ext["nextBeginOffset"], answer.body


def test_a_backlog_in_files_is_read_as_by_the_twin(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = node_config(tmp_path)
        async with running(config, bootstrap=True) as broker:
            await fill(broker.listener.port)
            await until_units_are_in_files_alone(broker)
            counting, reads = Counting(), reads_of(broker)
            reads._part = None
            by_twin = await pull_all(broker.listener.port)
            reads._part = counting
            natively = await pull_all(broker.listener.port)
        assert natively == by_twin
        assert [[(code, int(begin)) for code, begin, _ in queue] for queue in natively] == [
            [(0, offset + STEP) for offset in range(0, MESSAGES, STEP)]
        ] * QUEUES
        pulls = QUEUES * MESSAGES // STEP
        assert pulls - 2 * QUEUES <= counting.answered <= pulls, "all but those on both sides of a roll"
        assert counting.from_files == counting.answered

    asyncio.run(scenario())
