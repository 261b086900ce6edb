"""Histories of workloads over a leader kill are valid, and become invalid when they are spoilt."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from histories import verdict

from dledger.format import HEADER_BYTES
from dledger.store.verify import VerifyReport, inspect
from dledger_broker.features.delay.commands import ADD_KIND, END_KIND, EndTimers
from dledger_chaos.checkers import logs
from dledger_chaos.checkers.base import RUN_FILE, NodeFiles, RunData, RunInfo
from dledger_chaos.checkers.logs import topic_changes
from dledger_chaos.history import Recorder
from dledger_chaos.observation import STATUS_PERIOD_S
from dledger_chaos.workloads import delays, passing
from dledger_chaos.workloads.base import FOLLOWER_READS, SQL_FILTERS, NodeAddresses, WorkloadContext
from dledger_chaos.workloads.registry import WORKLOADS
from dledger_client.testing import LocalCluster
from dledger_remoting.record import RecordRef, scan_records

pytestmark = pytest.mark.long

NAMES = (
    "append", "ordered", "orderly", "followers", "consumers", "offsets", "catalogue", "passing", "delays", "retries",
    "transactions", "locks", "pops", "replies", "resets", "filtered", "broadcast",
    "assignments",
)  # fmt: skip
CAPABILITIES = frozenset({FOLLOWER_READS, SQL_FILTERS})
ENOUGH = 800
PROGRESS_SECONDS = 60.0


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the directory of a finished run."""
    directory = tmp_path_factory.mktemp("run")
    cluster = LocalCluster(data_dir=directory / "cluster", config="".join(WORKLOADS[name].config for name in NAMES))
    begin_ns = time.monotonic_ns()
    with cluster:
        asyncio.run(work(cluster, directory))
        nodes = [
            NodeFiles(node, node.rpartition("-")[0], f"cluster/{node}", [f"cluster/{node}/log/broker.log"])
            for node in cluster.node_ids
        ]
    info = RunInfo(3, "", "local", list(NAMES), [], "", begin_ns, begin_ns, time.monotonic_ns(), nodes)
    (directory / RUN_FILE).write_bytes(msgspec.json.encode(info))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def run(directory: Path) -> RunData:
    return RunData.load(directory)


async def work(cluster: LocalCluster, directory: Path) -> None:
    """Let all workloads run over the kill of a leader, and read everything."""
    nodes = [NodeAddresses(node, node.rpartition("-")[0], cluster.client_address(node)) for node in cluster.node_ids]
    stopping = asyncio.Event()
    with Recorder(directory) as recorder:
        pairs = []
        for name in NAMES:
            ctx = WorkloadContext(
                cluster.namesrv, nodes, random.Random(name), recorder, stopping, CAPABILITIES, directory / name
            )
            pairs.append((WORKLOADS[name].make(), ctx))
            await pairs[-1][0].setup(ctx)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(observe(cluster, recorder, stopping))
            for workload, ctx in pairs:
                tasks.create_task(workload.run(ctx))
            await progress(recorder)
            killed = await asyncio.to_thread(cluster.kill_leader)
            await progress(recorder)
            await asyncio.to_thread(cluster.restart, killed)
            stopping.set()
        await asyncio.to_thread(cluster.wait_ready)
        for workload, ctx in pairs:
            await workload.finish(ctx)


async def observe(cluster: LocalCluster, recorder: Recorder, stopping: asyncio.Event) -> None:
    """Record the leader regularly: checks ask whether a commit went to the leader itself."""
    while not stopping.is_set():
        for node_id in cluster.node_ids:
            status = await asyncio.to_thread(cluster.status, node_id)
            if status is not None:
                recorder.event("status", node=node_id, role=status.role, term=status.term, ready=status.ready)
        await asyncio.sleep(STATUS_PERIOD_S)


async def progress(recorder: Recorder) -> None:
    """Wait until some more operations have been answered."""
    target = recorder.counts["ok"] + ENOUGH
    async with asyncio.timeout(PROGRESS_SECONDS):
        while True:
            if recorder.counts["ok"] >= target:
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "name",
    [
        "lost", "phantom", "refused", "duplicated", "offset-given-twice", "gaps", "torn-batch", "reordered",
        "key-order", "diverged", "unqueued", "two-values", "dirty-read", "unreadable", "offset-back", "undelivered",
        "delivery-order", "catalogue", "orphaned", "errors", "due",
        "half", "unasked",
        "dead-letter", "lock", "in-turn", "popped", "popped-in-turn", "replied", "reset",
        "filtered", "broadcast", "traced", "assigned", "request-mode",
    ],
)  # fmt: skip
def test_a_killed_leader_breaks_no_promise(run, name):
    found = verdict(name, run)
    assert (found.result, found.examples) == ("valid", ()), found


def test_replicas_that_differ_in_one_byte_have_diverged(run, directory, tmp_path):
    spoilt = tmp_path / "broker-a-n0"
    shutil.copytree(directory / "cluster" / "broker-a-n0", spoilt)
    entry = next(meta for meta in inspect(str(spoilt)) if meta.size > HEADER_BYTES + 100)
    with (spoilt / "commitlog" / f"{0:020}").open("r+b") as segment:
        segment.seek(entry.position + HEADER_BYTES + 90)
        byte = segment.read(1)
        segment.seek(-1, 1)
        segment.write(bytes([byte[0] ^ 1]))
    assert verdict("diverged", with_nodes(run, spoilt)).result == "invalid"


def test_logs_that_cannot_be_read_are_unknown(run, tmp_path):
    assert verdict("diverged", with_nodes(run, tmp_path)).result == "unknown"
    assert verdict("unqueued", with_nodes(run, tmp_path, tmp_path, tmp_path)).result == "unknown"


def test_a_record_that_is_in_no_queue_is_found(run):
    assert verdict("unqueued", without_first_message(run)).result == "invalid"


def test_a_message_behind_the_deletion_of_its_topic_is_found(run):
    changes = topic_changes([run.path(node.directory) for node in run.info.nodes])[passing.TOPIC]
    deleted = next(position for position, exists in changes if not exists)
    operations = [
        msgspec.structs.replace(operation, extras={**operation.extras, "position": deleted})
        if operation.f == passing.F and operation.outcome == "ok"
        else operation
        for operation in run.operations
    ]
    assert verdict("orphaned", replace(run, operations=operations)).result == "invalid"


def test_a_queue_that_begins_above_the_first_kept_message_is_invalid(run):
    operations = []
    for operation in without_first_message(run).operations:
        if operation.f == "bounds":
            operation = msgspec.structs.replace(operation, value=[1, operation.value[1]])
        operations.append(operation)
    assert verdict("unqueued", replace(run, operations=operations)).result == "invalid"


def test_a_queue_offset_that_the_log_has_given_twice_is_found(run, monkeypatch):
    def doubled(block: bytes) -> Iterator[RecordRef]:
        for record in scan_records(block):
            yield msgspec.structs.replace(record, physical_offset=record.physical_offset - 1)
            yield record

    monkeypatch.setattr(logs, "scan_records", doubled)
    assert verdict("unqueued", run).result == "invalid"


@pytest.mark.parametrize(
    ("value", "further", "offset", "expected"),
    [
        ("passing.sender-0:0", 0, 0, "invalid"),
        (None, 1, 0, "invalid"),
        (None, 0, 1, "invalid"),
        (None, 10**9, 0, "unknown"),
        (None, 0, 0, "valid"),
    ],
)
def test_a_message_missing_at_its_acknowledged_place_is_judged_as_orphaned(run, value, further, offset, expected):
    operations = list(run.operations)
    place, told = next((at, one) for at, one in enumerate(operations) if one.f == passing.F and one.outcome == "ok")
    position = {"position": told.extras["position"] + further, "offset": told.extras["offset"] + offset}
    operations[place] = msgspec.structs.replace(told, value=value or told.value, extras={**told.extras, **position})
    assert verdict("orphaned", replace(run, operations=operations)).result == expected


def test_a_message_that_is_not_in_the_log_is_found(run):
    operations = []
    for operation in run.operations:
        if operation.f == "scan" and operation.value:
            operation = msgspec.structs.replace(operation, value=[*operation.value, [10**6, "append.x:1", 10**9]])
        operations.append(operation)
    assert verdict("unqueued", replace(run, operations=operations)).result == "invalid"


def test_a_delayed_message_that_a_full_disk_has_cost_is_not_missed(run, monkeypatch):
    operations = []
    for operation in run.operations:
        if operation.f in {"pull", "scan"} and operation.key.startswith(delays.TOPIC):
            operation = msgspec.structs.replace(operation, value=[])
        operations.append(operation)
    never = replace(run, operations=operations)
    assert verdict("due", never).result == "invalid"
    real_commands = logs._iter_commands

    def ended_at_once(report: VerifyReport) -> Iterator[tuple[int, int, bytes | memoryview]]:
        for end, kind, payload in real_commands(report):
            yield end, kind, payload
            if kind == ADD_KIND:
                yield end, END_KIND, EndTimers(end).to_payload()

    monkeypatch.setattr(logs, "_iter_commands", ended_at_once)
    assert verdict("due", never).result == "valid"


def with_nodes(run: RunData, *directories: Path) -> RunData:
    """Return the run as if its first nodes had left these directories."""
    nodes = list(run.info.nodes)
    for place, directory in enumerate(directories):
        nodes[place] = msgspec.structs.replace(nodes[place], directory=str(directory))
    return replace(run, info=msgspec.structs.replace(run.info, nodes=nodes))


def without_first_message(run: RunData) -> RunData:
    """Return the run as if nobody had got the first message of any queue."""
    operations = []
    for operation in run.operations:
        if operation.f == "scan" and operation.value and operation.extras["offset"] == 0:
            operation = msgspec.structs.replace(operation, value=operation.value[1:])
        operations.append(operation)
    return replace(run, operations=operations)
