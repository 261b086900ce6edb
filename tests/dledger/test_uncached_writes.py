"""The event loop of a node never waits for a read of the disk when it writes an entry."""

import asyncio
import sys
from pathlib import Path

import pytest
from node_group import SEGMENT_BYTES, Journal, until

from dledger import Node, NodeConfig
from dledger.store.segments import DIRECTORY
from tests.dledger.page_cache import evict, read_from_disk


@pytest.mark.skipif(sys.platform != "linux", reason="no counters of a thread's reads")
async def test_a_node_writes_over_several_segments_without_a_read_on_the_event_loop(tmp_path: Path) -> None:
    config = NodeConfig("c", "g", "n0", tmp_path, b"s" * 32, segment_bytes=SEGMENT_BYTES, bootstrap=True)
    async with Node(config, Journal()) as node:
        await until(lambda: node.is_ready)
        await node.append(b"modules that are imported late are read before")
        before = read_from_disk()
        for size in [100, 5000, 300, 4096, 30_000, 7] * 8:
            await asyncio.to_thread(evict, tmp_path)
            await node.append(bytes(size))
        assert node.replica.store.end_position > 4 * SEGMENT_BYTES
        assert len(list((tmp_path / DIRECTORY).iterdir())) > 4
        assert read_from_disk() == before
