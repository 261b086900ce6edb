"""How long `up` and `node start` wait for nodes: as long as these get on, and what they say meanwhile."""

import os
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from dledger_admin.cli import main
from dledger_admin.cluster import starting
from dledger_admin.cluster.ports import bytes_read
from dledger_admin.cluster.probes import NodeStatus
from dledger_admin.cluster.starting import READ_STEP_BYTES, SAY_AFTER_S, Patience

STATUS = NodeStatus(
    node_id="n0",
    group="broker-a",
    role="follower",
    term=3,
    leader_id=None,
    commit_index=9000,
    applied_index=9000,
    first_position=0,
    last_position=0,
    durable_position=0,
)


class Process:
    """A process that runs, as far as `Service` tells."""

    def pid(self) -> int:
        return 17


class World:
    """A clock that is moved, a node that reads, and what was said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.read: int | None = 0
        self.said: list[str] = []
        monkeypatch.setattr(starting.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(starting, "bytes_read", lambda pid: self.read)
        self.patience = Patience({"n0": Process()}, 30.0, self.said.append)

    def look_for(self, seconds: int, status: NodeStatus | None, *, reads: int = 0, applies: int = 0) -> None:
        """Look once a second, while the node reads and applies so much in each."""
        for _ in range(seconds):
            self.now += 1.0
            if self.read is not None:
                self.read += reads
            if status is not None:
                status = msgspec.structs.replace(status, applied_index=status.applied_index + applies)
            self.patience.look({"n0": status}, "broker-a: no node leads")


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def test_a_node_that_reads_its_log_is_waited_for_as_long_as_it_reads(world):
    world.look_for(300, None, reads=READ_STEP_BYTES)
    assert world.patience.is_late
    assert not world.patience.is_over
    world.look_for(29, None)
    assert not world.patience.is_over
    world.look_for(1, None)
    assert world.patience.is_over


def test_a_slow_disk_counts_as_soon_as_enough_was_read(world):
    world.look_for(300, None, reads=READ_STEP_BYTES // 20)
    assert not world.patience.is_over


@pytest.mark.parametrize("reads", [0, 200])
def test_a_node_that_asks_for_a_name_or_a_leader_gets_no_further(world, reads):
    world.look_for(30, None, reads=reads)
    assert world.patience.is_over


def test_a_node_of_which_the_system_tells_nothing_is_waited_for_no_longer_than_others(world):
    world.read = None
    world.look_for(30, None)
    assert world.patience.is_over


def test_a_node_that_applies_what_is_committed_is_waited_for(world):
    behind = msgspec.structs.replace(STATUS, applied_index=10)
    world.look_for(300, behind, applies=1)
    assert not world.patience.is_over


def test_a_node_that_stays_behind_is_not(world):
    world.look_for(30, msgspec.structs.replace(STATUS, applied_index=10))
    assert world.patience.is_over


def test_what_a_whole_group_writes_while_nobody_can_find_it_is_no_progress(world):
    status = STATUS
    for _ in range(30):
        world.now += 1.0
        status = msgspec.structs.replace(
            status, applied_index=status.applied_index + 1, commit_index=status.commit_index + 1
        )
        world.patience.look({"n0": status}, "broker-a: the name server does not list it yet")
    assert world.patience.is_over


def test_from_time_to_time_it_is_said_what_is_waited_for(world):
    world.look_for(int(SAY_AFTER_S) - 1, None)
    assert world.said == []
    world.look_for(1, None, reads=64 << 20)
    world.look_for(int(SAY_AFTER_S), msgspec.structs.replace(STATUS, applied_index=4000))
    assert world.said == [
        "waiting, for 5 s so far: broker-a: no node leads; n0 does not answer yet, and has read 64 MiB",
        "waiting, for 10 s so far: broker-a: no node leads; n0 applies entry 4,000 of 9,000",
    ]


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="this system does not tell")
def test_what_a_process_reads_from_files_is_counted(tmp_path):
    (tmp_path / "segment").write_bytes(bytes(3 << 20))
    before = bytes_read(os.getpid())
    descriptor = os.open(tmp_path / "segment", os.O_RDONLY)
    assert len(os.pread(descriptor, 3 << 20, 0)) == 3 << 20
    os.close(descriptor)
    assert bytes_read(os.getpid()) - before >= 3 << 20


@pytest.mark.usefixtures("stub_processes")
def test_up_gives_up_after_its_timeout_and_says_what_it_waited_for(tmp_path, ports):
    base_port, namesrv_port = map(str, ports)
    up = ("up", "--data", str(tmp_path / "c"), "--base-port", base_port, "--namesrv-port", namesrv_port, "--detach")
    assert CliRunner().invoke(main, up).exit_code == 0
    assert CliRunner().invoke(main, ("down", "--data", str(tmp_path / "c"))).exit_code == 0
    (tmp_path / "c" / "broker-a-n0" / "never-leads").touch()
    result = CliRunner().invoke(main, (*up, "--timeout", "0.5"))
    assert result.exit_code == 1
    assert "broker-a had no leader that accepts writes" in result.output
    assert "no node of it got any further for 0.5 s; broker-a: no node leads" in result.output


@pytest.mark.parametrize("command", [("up",), ("node", "start", "broker-a-n0")])
def test_without_detach_there_is_no_timeout(tmp_path, command):
    result = CliRunner().invoke(main, (*command, "--data", str(tmp_path), "--timeout", "5"))
    assert result.exit_code == 2
    assert "--timeout goes with --detach" in result.output
