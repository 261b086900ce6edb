"""`raft/boot` names the last run of the operating system in which the log held everything acknowledged."""

from errno import ENOSPC
from pathlib import Path
from random import Random

import msgspec
import pytest
from node_group import Group, until
from sim_groups import run, started

import dledger.reopening
from dledger.config import ReplicaConfig
from dledger.replica.replica import Replica
from dledger.replica.start.boot import PATH as BOOT_PATH
from dledger.replica.start.boot import BootRecord, note_boot, record_boot
from dledger.replica.start.opening import open_directory
from dledger.testing.disk import SimDisk
from dledger_sim.log.group import GroupSettings
from dledger_sim.log.workload import Workload, WorkloadSettings


async def test_killed_processes_elect_a_leader_although_each_host_once_went_down_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    boot = "monday"
    monkeypatch.setattr(dledger.reopening, "boot_id", lambda: boot)
    close = Replica.close
    monkeypatch.setattr(Replica, "close", lambda self, *, clean: close(self, clean=False))
    async with Group(tmp_path, flush="async") as group:
        await group.append(5)
        await group.settled()
        boot = "tuesday"
        for node_id in group.ids:
            await group.stop(node_id)
            await group.append(2)
            await group.start(node_id)
            node = group.nodes[node_id]
            await group.append(2)
            await group.settled()
            await until(lambda node=node: node.replica.engine.may_vote, "a vote again")
        await until(lambda: all(b"tuesday" in (group.home(n) / BOOT_PATH).read_bytes() for n in group.ids), "a record")
        await group.stop()
        await group.start()
        assert all(node.replica.engine.may_vote for node in group.nodes.values())
        await group.append(1)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_node_starts_on_a_full_disk_after_its_host_was_rebooted(flush: str):
    disk = SimDisk(Random(1))
    config = ReplicaConfig("c", "g", "n0", frozenset(["n0"]), segment_bytes=64 << 10, flush=flush)
    open_directory(disk, config, lambda: "x" * 32, boot_id="monday", bootstrap=True).store.close(clean=True)
    disk.fill_up()
    disk.kill()
    opened = open_directory(disk, config, lambda: "y" * 32, boot_id="tuesday")
    assert opened.may_vote
    assert not opened.boot_file.recorded


def test_an_orderly_stop_does_not_restore_the_right_to_vote():
    """An orderly stop does not restore entries that a host lost when it went down."""
    group = started(GroupSettings(flush="async"))
    node = group.nodes["n0"]
    for name in group.nodes:
        group.crash(name, "none")
    for doubtful in (True, True):
        group.start(node.name)
        assert node.replica is not None
        assert node.replica.engine.may_vote != doubtful
        run(group, 2.0)
        group.stop(node.name)
        run(group, 1.0)
        assert node.life is None


def test_a_boot_record_without_disk_space_is_written_later():
    group = started(GroupSettings(flush="async"))
    node = group.nodes["n0"]
    group.crash(node.name, "none")
    node.disk.fail(lambda operation, path: (operation, path) == ("open", f"{BOOT_PATH}.tmp"), ENOSPC)
    group.start(node.name)
    group.scheduler.run_until(10.0)
    assert node.disk.faults == [], "the first attempt was refused"
    assert node.replica is not None
    assert node.replica.engine.may_vote
    assert f"boot-{node.boots}".encode() in node.disk.open(BOOT_PATH).pread(1000, 0)


def test_a_node_with_a_rotten_boot_record_does_not_vote_after_a_host_crash():
    disk = SimDisk(Random(1))
    disk.mkdir("raft")
    record_boot(disk, BootRecord("monday", "async"))
    for bit in range(disk.durable_size(BOOT_PATH) * 8):
        disk.flip_bit(BOOT_PATH, bit)
        assert not note_boot(disk, BootRecord("tuesday", "async"), clean=False).may_vote
        disk.flip_bit(BOOT_PATH, bit)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_record_that_rots_while_its_node_runs_is_written_anew(flush: str):
    group = started(GroupSettings(flush=flush))
    disk = group.nodes["n0"].disk
    content = disk.image().files[BOOT_PATH]
    for bit in (3, 8 * content.index(b"boot-")):
        disk.flip_bit(BOOT_PATH, bit)
        assert disk.image().files[BOOT_PATH] != content
        run(group, 5.0)
        assert disk.image().files[BOOT_PATH] == content
    disk.flip_bit(BOOT_PATH, 3)
    group.kill("n0")
    group.start("n0")
    run(group, 5.0)
    assert msgspec.json.decode(disk.image().files[BOOT_PATH], type=BootRecord) == BootRecord(
        f"boot-{group.nodes['n0'].boots}", flush
    )


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_node_whose_sync_failed_votes_only_if_it_acknowledged_what_was_synced(flush: str):
    """A failed sync may take what was acknowledged before it, at the next start as well as in a running node."""
    group = started(GroupSettings(flush=flush))
    Workload(group, Random(4), WorkloadSettings()).start()
    node = group.nodes["n0"]
    for fails_at_start in (False, True):
        if fails_at_start:
            group.kill(node.name)
        node.failing_disk = True
        node.disk.fail(lambda operation, path: operation == "datasync" and path.startswith("commitlog"))
        group.start(node.name) if fails_at_start else run(group, 5.0)
        assert (node.disk.faults, node.life) == ([], None), "it met the fault and ended"
        group.start(node.name)
        assert node.replica is not None
        assert node.replica.engine.may_vote == (flush == "sync")
        run(group, 5.0)
        assert node.replica.engine.may_vote, "a leader has brought it up to date"
