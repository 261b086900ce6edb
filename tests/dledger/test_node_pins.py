"""Pins keep segments readable. Workers open and close the files of a pin, never an event loop."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from node_group import leading, until

from dledger import Node
from dledger.errors import StorageError
from dledger.store.log import LogStore, Pin


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """Run a node whose older segments are all closed."""
    async with leading(tmp_path) as node:
        while len(node.segments()) < 4:
            await node.append(b"x" * 1000)
        for segment in tuple(node.replica.store._table)[:-1]:
            await asyncio.to_thread(segment.file.close)
            segment._file = None
        yield node


async def test_a_segment_that_was_never_read_is_opened_by_a_worker(node: Node, tmp_path: Path) -> None:
    before = (await asyncio.to_thread((tmp_path / f"commitlog/{0:020d}").read_bytes))[:100]
    second = node.segments()[1].start_position
    with await node.pin(0) as pin, await node.pin(second) as other:
        assert await asyncio.to_thread(pin.read, 0, 100) == before
        assert len(await asyncio.to_thread(other.read, second, 100)) == 100


async def test_a_pin_whose_caller_gave_up_is_released(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, pins = threading.Event(), list[Pin]()
    real = LogStore.pin

    def later(store: LogStore, position: int) -> Pin:
        go_on.wait(10)
        pins.append(real(store, position))
        return pins[-1]

    monkeypatch.setattr(LogStore, "pin", later)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await node.pin(0)
    go_on.set()
    await until(lambda: bool(pins) and not pins[0]._segment.held, "the release")


async def test_a_pin_that_outlives_its_node_is_released_on_the_event_loop(node: Node) -> None:
    pin = await node.pin(0)
    await node.stop()
    assert len(await asyncio.to_thread(pin.read, 0, 100)) == 100
    pin.release()
    assert pin._segment._file is None, "and closed"


async def test_a_segment_that_cannot_be_opened_is_an_error_of_the_storage(node: Node, tmp_path: Path) -> None:
    second = node.segments()[1].start_position
    (tmp_path / f"commitlog/{second:020d}").unlink()
    for read in (node.pin(second), node.read(second, 100)):
        with pytest.raises(StorageError, match="opening commitlog/"):
            await read
