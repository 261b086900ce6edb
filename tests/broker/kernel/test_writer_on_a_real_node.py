"""Units of the broker's own on a real node and a real disk: one voter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import pytest
import pytest_asyncio
from node_alone import NodeAlone

from dledger.errors import NotLeaderError, TooLargeError
from dledger.format import MAX_UNIT_BYTES
from dledger_broker.kernel.machine import MachineConfig
from dledger_broker.kernel.units import NewRecord, Stored, UnitOutcome, Unknown
from dledger_broker.kernel.writer import LogWriter
from dledger_remoting.hosts import HostAddress
from dledger_remoting.record import decode_record

SMALL = MachineConfig(node_id="n0", units_per_file=1000, index_slots=1000, index_entries=5000)


class WritingNode(NodeAlone):
    """Node that leads and has the topic `T1` with 4 queues."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, SMALL, segment_bytes=16 << 20)
        self.writer = LogWriter(self.machine, self.node, self.env, HostAddress("10.0.0.1", 10911))
        self.told: list[UnitOutcome] = []

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self.create("T1")
        return self

    def write(self, *records: NewRecord) -> asyncio.Future[UnitOutcome]:
        outcome: asyncio.Future[UnitOutcome] = asyncio.get_running_loop().create_future()
        before = len(self.told)

        def done(told: UnitOutcome) -> None:
            self.told.append(told)
            outcome.set_result(told)

        self.writer.write(records, done=done)
        assert len(self.told) == before, "nothing is told inside `write`"
        return outcome


@pytest_asyncio.fixture
async def writing(tmp_path: Path) -> AsyncIterator[WritingNode]:
    async with asyncio.timeout(30), WritingNode(tmp_path) as node:
        yield node


def record(body: bytes, queue_id: int = 0, topic: str = "T1") -> NewRecord:
    return NewRecord(topic=topic, queue_id=queue_id, body=body, born_ms=1, born_host=bytes(8))


async def test_records_are_stored_at_their_reported_places(writing: WritingNode) -> None:
    bodies = [b"small", bytes(5 << 20), b"after a large one"]
    outcomes = [writing.write(record(body), record(b"beside", 1), record(b"left out", topic="NONE")) for body in bodies]
    for number, (body, outcome) in enumerate(zip(bodies, await asyncio.gather(*outcomes), strict=True)):
        assert isinstance(outcome, Stored)
        first, beside, left_out = outcome.places
        assert left_out is None
        for place, expected in ((first, body), (beside, b"beside")):
            assert place is not None
            assert place.queue_offset == number
            stored = decode_record(await writing.node.read(place.position, place.size), verify_crc=True)
            assert (stored.body, stored.queue_offset, stored.physical_offset) == (expected, number, place.position)


async def test_a_unit_that_the_log_does_not_take_uses_no_queue_offset(writing: WritingNode) -> None:
    with pytest.raises(TooLargeError):
        writing.write(record(bytes(MAX_UNIT_BYTES)))
    outcome = await writing.write(record(b"next"))
    assert isinstance(outcome, Stored)
    assert [place.queue_offset for place in outcome.places if place] == [0]


async def test_a_stopping_node_reports_every_outcome_once(tmp_path: Path) -> None:
    writing = WritingNode(tmp_path)
    async with asyncio.timeout(30):
        await writing.__aenter__()
        stored = await writing.write(record(b"stored"))
        outcomes = [writing.write(record(b"on its way")) for _ in range(3)]
        nothing_left = writing.write(record(b"left out", topic="NONE"))
        await writing.node.stop()
        assert isinstance(stored, Stored)
        assert await asyncio.gather(*outcomes) == [Unknown()] * 3
        assert await nothing_left == Stored((None,))
        assert len(writing.told) == 5
        with pytest.raises(NotLeaderError):
            writing.write(record(b"late"))
        writing.machine.abandon()
        writing.env.close()
