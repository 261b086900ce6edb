"""A cluster with the engine around PySyncObj works as an operator uses it: processes, kills, conversion."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner
from cluster_checks import stop_and_compare_logs
from kill_workload import Workload

from dledger_admin.cli import main
from dledger_client.testing import LocalCluster

pytestmark = pytest.mark.long

BEFORE = 200
AFTER = 200


def _convert(cluster: LocalCluster, engine: str) -> None:
    for node_id in cluster.node_ids:
        arguments = ["node", "convert", "--data", str(cluster.data_dir), "--engine", engine, node_id]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output
        assert f"{node_id} has engine {engine}, which was" in result.output


async def test_stored_messages_survive_a_leader_kill_and_a_change_of_engines(tmp_path: Path) -> None:
    data_dir = tmp_path / "cluster"
    async with LocalCluster(data_dir=data_dir, engine="pysyncobj") as cluster:
        async with Workload(cluster.namesrv) as load:
            await load.progress(BEFORE)
            killed = await asyncio.to_thread(cluster.kill_leader)
            await load.progress(AFTER)
            assert await asyncio.to_thread(cluster.leader) != killed
            await asyncio.to_thread(cluster.restart, killed)
            await asyncio.to_thread(cluster.wait_ready)
        await load.check()
        assert await asyncio.to_thread(stop_and_compare_logs, cluster) > 0
    _convert(cluster, "native")
    async with LocalCluster(data_dir=data_dir) as cluster:
        load.namesrv = cluster.namesrv
        await load.check()
