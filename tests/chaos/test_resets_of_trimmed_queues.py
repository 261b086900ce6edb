"""The resets at the end of a run are answered and obeyed for queues whose beginning was trimmed."""

from __future__ import annotations

import asyncio
import random
import time

import msgspec
import pytest
from histories import verdict

from dledger_chaos.checkers.base import RUN_FILE, NodeFiles, RunData, RunInfo
from dledger_chaos.history import Recorder
from dledger_chaos.workloads import resets, retention
from dledger_chaos.workloads.base import FOLLOWER_READS, NodeAddresses, WorkloadContext
from dledger_chaos.workloads.registry import WORKLOADS
from dledger_client.testing import LocalCluster

pytestmark = pytest.mark.long

NAMES = (retention.NAME, resets.NAME)
CAPABILITIES = frozenset({FOLLOWER_READS})
WORK_SECONDS = 3.0
SMALL_LOG = "retention_bytes = 16777216\nsegment_bytes = 4194304\n"


async def test_a_group_is_reset_to_the_first_kept_offset_of_trimmed_queues(tmp_path):
    begin_ns = time.monotonic_ns()
    with LocalCluster(nodes=1, data_dir=tmp_path / "cluster", config=SMALL_LOG) as cluster:
        nodes = [NodeAddresses(node, "broker-a", cluster.client_address(node)) for node in cluster.node_ids]
        with Recorder(tmp_path) as recorder:
            await work(cluster, nodes, recorder, tmp_path)
        files = [NodeFiles(node.node_id, "broker-a", f"cluster/{node.node_id}", []) for node in nodes]
    info = RunInfo(1, "", "local", list(NAMES), [], "", begin_ns, begin_ns, time.monotonic_ns(), files)
    (tmp_path / RUN_FILE).write_bytes(msgspec.json.encode(info))
    run = RunData.load(tmp_path)
    ended = [one for one in run.of(resets.NAME, "reset") if one.process == resets.FINAL]
    assert [one.outcome for one in ended] == ["ok"] * (2 * resets.QUEUES), ended
    assert any(offset > 0 for one in ended[resets.QUEUES :] for _, offset in one.value)
    for name in ("reset", "retention"):
        found = verdict(name, run)
        assert (found.result, found.examples) == ("valid", ()), found


async def work(cluster, nodes, recorder, directory):
    """Let both workloads run for a while, then trim the log until its beginning is gone."""
    pairs = []
    for name in NAMES:
        ctx = WorkloadContext(
            cluster.namesrv, nodes, random.Random(name), recorder, asyncio.Event(), CAPABILITIES, directory
        )
        pairs.append((WORKLOADS[name].make(), ctx))
        await pairs[-1][0].setup(ctx)
    async with asyncio.TaskGroup() as tasks:
        for workload, ctx in pairs:
            tasks.create_task(workload.run(ctx))
        await asyncio.sleep(WORK_SECONDS)
        for _, ctx in pairs:
            ctx.stopping.set()
    recorder.event("phase", "final-reads")
    for workload, ctx in pairs:
        await workload.finish(ctx)
