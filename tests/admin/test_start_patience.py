"""`up` and `node start` wait for nodes as long as these make progress, and report on them meanwhile."""

import os
from pathlib import Path

import msgspec
import pytest
from command_fakes import dledger, refused

from dledger_admin.cluster import starting
from dledger_admin.cluster.ports import bytes_read
from dledger_admin.cluster.probes import NodeStatus
from dledger_admin.cluster.starting import READ_STEP_BYTES, SAY_AFTER_S, Patience

STATUS = NodeStatus(
    node_id="n0", group="broker-a", role="follower", term=3, leader_id=None, commit_index=9000, applied_index=9000,
    first_position=0, last_position=0, durable_position=0,
)  # fmt: skip
BEHIND = msgspec.structs.replace(STATUS, applied_index=10)


class Process:
    """Process that runs, as `Service` sees it."""

    def pid(self) -> int:
        return 17


class World:
    """Clock that the test moves, a node that reads, and the output."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.read: int | None = 0
        self.said: list[str] = []
        monkeypatch.setattr(starting.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(starting, "bytes_read", lambda pid: self.read)
        self.patience = Patience({"n0": Process()}, 30.0, self.said.append)

    def look_for(self, seconds: int, status: NodeStatus | None, *, reads: int = 0, applies: int = 0) -> None:
        """Look once a second, while the node reads and applies this much in each second."""
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


def test_a_start_waits_for_a_node_as_long_as_the_node_reads_its_log(world):
    world.look_for(300, None, reads=READ_STEP_BYTES)
    assert world.patience.is_late
    assert not world.patience.is_over
    world.look_for(29, None)
    assert not world.patience.is_over
    world.look_for(1, None)
    assert world.patience.is_over


@pytest.mark.parametrize(
    ("seconds", "status", "progress", "is_over"),
    [
        (300, None, {"reads": READ_STEP_BYTES // 20}, False),
        (30, None, {"reads": 200}, True),
        (30, None, {}, True),
        (300, BEHIND, {"applies": 1}, False),
        (30, BEHIND, {}, True),
    ],
    ids=["a slow disk that has read enough", "small reads", "no reads", "entries are applied", "none are applied"],
)
def test_a_start_waits_longer_only_for_a_node_that_reads_enough_or_applies_entries(
    world, seconds, status, progress, is_over
):
    world.look_for(seconds, status, **progress)
    assert world.patience.is_over == is_over


def test_a_start_waits_for_a_node_without_read_counts_only_the_usual_time(world):
    world.read = None
    world.look_for(30, None)
    assert world.patience.is_over


def test_commits_of_an_unregistered_group_do_not_count_as_progress(world):
    status = STATUS
    for _ in range(30):
        world.now += 1.0
        status = msgspec.structs.replace(
            status, applied_index=status.applied_index + 1, commit_index=status.commit_index + 1
        )
        world.patience.look({"n0": status}, "broker-a: the name server does not list it yet")
    assert world.patience.is_over


def test_a_start_tells_periodically_which_node_delays_the_start(world):
    world.look_for(int(SAY_AFTER_S) - 1, None)
    assert world.said == []
    world.look_for(1, None, reads=64 << 20)
    world.look_for(int(SAY_AFTER_S), msgspec.structs.replace(STATUS, applied_index=4000))
    assert world.said == [
        "waiting, for 5 s so far: broker-a: no node leads; n0 does not answer yet, and has read 64 MiB",
        "waiting, for 10 s so far: broker-a: no node leads; n0 applies entry 4,000 of 9,000",
    ]


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="this system does not tell")
def test_bytes_read_counts_the_file_reads_of_a_process(tmp_path):
    (tmp_path / "segment").write_bytes(bytes(3 << 20))
    before = bytes_read(os.getpid())
    descriptor = os.open(tmp_path / "segment", os.O_RDONLY)
    assert len(os.pread(descriptor, 3 << 20, 0)) == 3 << 20
    os.close(descriptor)
    assert bytes_read(os.getpid()) - before >= 3 << 20


@pytest.mark.usefixtures("stub_processes")
def test_up_gives_up_after_its_timeout_and_names_the_missing_leader(tmp_path, ports):
    base_port, namesrv_port = map(str, ports)
    up = ("up", "--data", str(tmp_path / "c"), "--base-port", base_port, "--namesrv-port", namesrv_port, "--detach")
    dledger(*up)
    dledger("down", "--data", tmp_path / "c")
    (tmp_path / "c" / "broker-a-n0" / "never-leads").touch()
    error = refused(*up, "--timeout", "0.5")
    assert "broker-a had no leader that accepts writes" in error
    assert "no node of it got any further for 0.5 s; broker-a: no node leads" in error


@pytest.mark.parametrize("command", [("up",), ("node", "start", "broker-a-n0")])
def test_without_detach_there_is_no_timeout(tmp_path, command):
    assert "--timeout goes with --detach" in refused(*command, "--data", tmp_path, "--timeout", "5", code=2)
