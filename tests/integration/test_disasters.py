"""Walk through the page `docs/operations/disasters.md`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import commands
import pytest
from cluster_checks import bodies_of, dledger, eventually, read_topic

from dledger.testing.ports import free_ports
from dledger_client import Producer
from dledger_client.testing import LocalCluster

pytestmark = pytest.mark.long
TOPIC = "orders"
BODIES = [f"order-{number:04}" for number in range(200)]
SECONDS = 60.0


@pytest.fixture(autouse=True)
async def filled(cluster: LocalCluster) -> None:
    async with Producer(cluster.namesrv) as producer:
        for body in BODIES:
            await producer.send(TOPIC, body.encode(), key="k", ordering_key="one")
    await asyncio.to_thread(cluster.wait_ready)


async def run(*words: object, codes: tuple[int, ...] = (0,)) -> str:
    return await asyncio.to_thread(dledger, *map(str, words), codes=codes)


def started(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def all_vote(cluster: LocalCluster) -> bool:
    said = json.loads(await run("status", "--data", cluster.data_dir, "-o", "json", codes=(0, 3)))
    statuses = [process["status"] for process in said["processes"] if process["status"]]
    return any(sorted(status["voters"]) == sorted(cluster.node_ids) for status in statuses if status["ready"])


async def health(namesrv: str) -> str:
    return (await asyncio.to_thread(commands.run, "cluster", "health", "--namesrv", namesrv)).stdout


async def exported(directory: Path, *words: str, codes: tuple[int, ...] = (0,)) -> list[str]:
    lines = (await run("log", "export", directory, *words, codes=codes)).splitlines()
    messages = [json.loads(line) for line in lines if line.startswith("{")]
    return [message["body"] for message in messages if message["topic"] == TOPIC]


async def test_a_survivor_is_rescued_and_the_lost_nodes_come_back_only_empty(cluster: LocalCluster, tmp_path: Path):
    survivor, *lost = cluster.node_ids
    data = cluster.data_dir
    assert "broker-a: 3 of 3 voters: 1 more failure is survived" in await health(cluster.namesrv)
    refused = await asyncio.to_thread(commands.run, "node", "rescue", "--data", data, survivor, "--yes")
    assert (refused.returncode != 0, "answers at" in refused.stderr) == (True, True)
    for node_id in lost:
        await asyncio.to_thread(cluster.kill, node_id)
        os.rename(data / node_id, tmp_path / node_id)
    await run("node", "stop", "--data", data, survivor, "--now")
    shown = await run("node", "rescue", "--data", data, survivor, "--compare", tmp_path / lost[0], "--dry-run")
    assert f"the votes of {', '.join(lost)}" in shown
    said = await run("node", "rescue", "--data", data, survivor, "--yes")
    assert "is the only voter of its group from its next start on" in said
    await asyncio.to_thread(cluster.restart, survivor)
    assert bodies_of(await read_topic(cluster.namesrv, TOPIC)) == BODIES
    assert "1 of 1 voters: the next failure stops writes" in await health(cluster.namesrv)
    os.rename(tmp_path / lost[0], data / lost[0])
    await asyncio.to_thread(cluster.restart, lost[0])
    log = data / survivor / "log" / "broker.log"

    async def is_refused() -> bool:
        return "the group was rescued without the other node" in log.read_text()

    await eventually(SECONDS, "the lost node is refused by name", is_refused)
    assert "1 of 1 voters" in await health(cluster.namesrv)
    await asyncio.to_thread(cluster.kill, lost[0])
    shutil.rmtree(data / lost[0])
    for node_id in lost:
        await asyncio.to_thread(cluster.restart, node_id)

    await eventually(SECONDS, "the lost nodes vote again", partial(all_vote, cluster))


async def test_a_cold_copy_of_a_node_becomes_another_group_by_a_rescue(cluster: LocalCluster, tmp_path: Path):
    node_id = cluster.node_ids[0]
    await asyncio.to_thread(cluster.kill, node_id)
    home = tmp_path / "copy"
    shutil.copytree(cluster.data_dir / node_id, home / "data")
    await asyncio.to_thread(cluster.restart, node_id)
    port, peer_port, namesrv_port = free_ports(3)
    config = home / "broker.toml"
    before = (home / "data" / "broker.toml").read_text()
    segment_bytes = next(line for line in before.splitlines() if line.startswith("segment_bytes"))
    name = next(line for line in before.splitlines() if line.startswith("cluster ="))
    config.write_text(
        f'{name}\nbroker_group = "broker-a"\nnode_id = "{node_id}"\ndata_dir = "{home / "data"}"\nport = {port}\n'
        f'peer_port = {peer_port}\nhttp_port = 0\nalias_port = 0\nnamesrv = "127.0.0.1:{namesrv_port}"\n'
        f"{segment_bytes}\n"
    )
    assert "is another group of one voter now" in await run("node", "rescue", "--config", config, "--as-copy", "--yes")
    namesrv = started(
        "dledger_namesrv", "--host", "127.0.0.1", "--port", str(namesrv_port), "--data", str(home / "namesrv")
    )
    broker = started("dledger_broker", "--config", str(config))
    try:
        deadline = time.monotonic() + SECONDS
        while "healthy: 1 nodes" not in await health(f"127.0.0.1:{namesrv_port}"):
            assert time.monotonic() < deadline, "the copy did not lead"
            await asyncio.sleep(0.2)
        assert bodies_of(await read_topic(f"127.0.0.1:{namesrv_port}", TOPIC)) == BODIES
        assert await all_vote(cluster), "the group goes on"
    finally:
        for process in (broker, namesrv):
            process.kill()
            process.wait()


async def test_the_messages_of_a_directory_are_exported_live_dead_torn_and_into_another_cluster(
    cluster: LocalCluster, tmp_path: Path
):
    node_id = cluster.node_ids[0]
    directory = cluster.data_dir / node_id
    assert await exported(directory) == BODIES, "while it runs"
    await asyncio.to_thread(cluster.kill, node_id)
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    segment = next(iter((copy / "commitlog").iterdir()))
    with segment.open("r+b") as file:
        data = file.read()
        file.seek(data.index(BODIES[100].encode()))
        file.write(b"rot!")
        file.seek(data.index(BODIES[150].encode()) - 300)
        file.write(b"\xff" * 100)
    left = await exported(copy, codes=(1,))
    missing = set(BODIES) - set(left)
    assert BODIES[100] in missing
    assert missing <= {BODIES[number] for number in (*range(95, 105), *range(145, 155))}, "what no rot has hit is there"
    assert await exported(copy, "--topic", "another", codes=(1,)) == []
    async with LocalCluster(data_dir=tmp_path / "other", nodes=1) as other:
        await run("log", "export", directory, "--topic", TOPIC, "--into", other.namesrv)
        assert bodies_of(await read_topic(other.namesrv, TOPIC)) == BODIES
