"""`raft/boot` says in which run of the operating system everything acknowledged was last here."""

from errno import ENOSPC
from pathlib import Path
from random import Random

import msgspec
import pytest
from node_group import Group, until

import dledger.reopening
from dledger.config import ReplicaConfig
from dledger.replica.boot import PATH as BOOT_PATH
from dledger.replica.boot import BootRecord, note_boot, record_boot
from dledger.replica.opening import open_directory
from dledger.replica.replica import Replica
from dledger.testing.disk import SimDisk
from dledger_sim.log.group import GroupSettings, SimGroup
from dledger_sim.log.registers import serve_registers
from dledger_sim.log.scheduler import Scheduler


async def test_killed_processes_elect_a_leader_although_each_host_once_went_down_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    boot = "monday"
    monkeypatch.setattr(dledger.reopening, "_boot_id", lambda: boot)
    close = Replica.close
    monkeypatch.setattr(Replica, "close", lambda self, *, clean: close(self, clean=False))
    group = Group(tmp_path, flush="async")
    try:
        await group.start()
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
    finally:
        await group.stop()


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


def test_an_orderly_stop_takes_no_doubt_away():
    """What the host lost when it went down is still lost."""
    group = SimGroup(Scheduler(), Random(1), GroupSettings(flush="async"), serve_registers)
    for name in group.nodes:
        group.start(name)
    group.scheduler.run_until(3.0)
    node = group.nodes["n0"]
    for name in group.nodes:
        group.crash(name, "none")
    for doubtful in (True, True):
        group.start(node.name)
        assert node.replica is not None
        assert node.replica.engine.may_vote != doubtful
        group.scheduler.run_until(group.scheduler.now + 2.0)
        group.stop(node.name)
        group.scheduler.run_until(group.scheduler.now + 1.0)
        assert node.life is None


def test_a_start_that_found_no_space_for_its_record_makes_it_once_there_is_some():
    group = SimGroup(Scheduler(), Random(1), GroupSettings(flush="async"), serve_registers)
    for name in group.nodes:
        group.start(name)
    group.scheduler.run_until(3.0)
    node = group.nodes["n0"]
    group.crash(node.name, "none")
    node.disk.fail(lambda operation, path: (operation, path) == ("open", f"{BOOT_PATH}.tmp"), ENOSPC)
    group.start(node.name)
    group.scheduler.run_until(10.0)
    assert node.disk.faults == [], "the first attempt was refused"
    assert node.replica is not None
    assert node.replica.engine.may_vote
    assert f"boot-{node.boots}".encode() in node.disk.open(BOOT_PATH).pread(1000, 0)


def test_whichever_bit_of_the_record_rots_a_node_whose_host_went_down_does_not_vote():
    disk = SimDisk(Random(1))
    disk.mkdir("raft")
    record_boot(disk, BootRecord("monday", "async"))
    for bit in range(disk.durable_size(BOOT_PATH) * 8):
        disk.flip_bit(BOOT_PATH, bit)
        assert not note_boot(disk, BootRecord("tuesday", "async"), clean=False).may_vote
        disk.flip_bit(BOOT_PATH, bit)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_record_that_rots_while_its_node_runs_is_written_anew(flush: str):
    group = SimGroup(Scheduler(), Random(1), GroupSettings(flush=flush), serve_registers)
    for name in group.nodes:
        group.start(name)
    group.scheduler.run_until(3.0)
    disk = group.nodes["n0"].disk
    content = disk.image().files[BOOT_PATH]
    for bit in (3, 8 * content.index(b"boot-")):
        disk.flip_bit(BOOT_PATH, bit)
        assert disk.image().files[BOOT_PATH] != content
        group.scheduler.run_until(group.scheduler.now + 5.0)
        assert disk.image().files[BOOT_PATH] == content
    disk.flip_bit(BOOT_PATH, 3)
    group.kill("n0")
    group.start("n0")
    group.scheduler.run_until(group.scheduler.now + 5.0)
    assert msgspec.json.decode(disk.image().files[BOOT_PATH], type=BootRecord) == BootRecord(
        f"boot-{group.nodes['n0'].boots}", flush
    )
