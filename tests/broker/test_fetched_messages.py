"""Consumers see the messages of a log part that was fetched and joined to the front of a node's log."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from broker_in_process import Client, node_config, running

from dledger.replica.start.opening import read_identity
from dledger.store.disk import OsDisk
from dledger.store.earlier import EarlierPart
from dledger.store.snapshots import SnapshotStore
from dledger_remoting.record import iter_records

SEGMENT_BYTES = 1 << 20
BODY = bytes(60_000)


async def test_queues_of_a_fetched_earlier_part_of_the_log_are_rebuilt(tmp_path: Path) -> None:
    config = node_config(tmp_path, segment_bytes=SEGMENT_BYTES, snapshot_interval_s=1)
    home, aside = Path(config.data_dir), tmp_path / "aside"
    sent = 0

    async def send_until(condition: Callable[[], bool]) -> None:
        nonlocal sent
        while not condition():
            answer = await client.send(b"%06d" % sent + BODY)
            assert answer.ext["queueOffset"] == str(sent)
            sent += 1

    async with running(config, bootstrap=True) as broker:
        client = await Client.connect(broker.listener.port)
        node = broker.node
        await send_until(lambda: len(node.trim_candidates()) > 0)
        position = node.trim_candidates()[-1]
        shutil.copytree(home / "commitlog", aside)
        node.replica._taker.trim(position)  # on this node only: the group keeps the messages
        await send_until(lambda: node.first_position == position)
    for directory in ("views", "consumequeue"):
        shutil.rmtree(home / directory)
    async with running(config) as broker:  # its queues begin where its log begins, as if it had joined there
        client = await Client.connect(broker.listener.port)
        assert not list(iter_records((await client.pull(0)).body))
        await send_until(lambda: sent % 10 == 0)
    disk = OsDisk(str(home))
    identity = read_identity(disk)
    assert identity is not None
    part = EarlierPart.resumed_or_begun(disk, SEGMENT_BYTES, identity.incarnation, 0, position)
    while part.plan.position < position:
        part.write(part.segment_path, (aside / f"{part.plan.position:020d}").read_bytes(), 0)
        part.take_segment()
    part.finish(next(meta for meta in SnapshotStore.open(disk).list() if meta.position == position))
    async with running(config) as broker:
        assert broker.node.first_position == 0
        client = await Client.connect(broker.listener.port)
        for offset in range(0, sent, 7):
            records = list(iter_records((await client.pull(offset)).body))
            assert records[0].body[:6] == b"%06d" % offset
