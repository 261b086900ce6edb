"""The disk shim: a power loss takes exactly what a process had not synced, and the disk fails as its rules say."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from dledger_chaos.disk.build import disk_shim
from dledger_chaos.disk.control import FULL_DISK, DiskControl, Rule, shim_environment
from dledger_chaos.disk.undo import forget, lose_power
from dledger_chaos.errors import TargetError

NODE = "broker-a-n0"
HELPERS = """
import ctypes, os, signal, sys, threading, time
node = os.path.dirname(sys.argv[1])
if os.path.isdir(node): os.chdir(node)
def opened(name, flags=os.O_RDWR | os.O_CREAT): return os.open(name, flags, 0o644)
def sync_dir(name="."):
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY); os.fsync(fd); os.close(fd)
def attempt(call, *arguments):
    try: call(*arguments)
    except OSError as error: return error.errno
    return 0
"""
DIE = "\nos.kill(os.getpid(), signal.SIGKILL)\n"


FILLING = """
fd = opened("data"); os.pwrite(fd, bytes(4096), 0); print("ready", flush=True)
for _ in sys.stdin:
    calls = [(os.pwrite, fd, b"x", 0), (os.pwrite, fd, b"x", 4096), (os.posix_fallocate, fd, 0, 8192), (opened, "new")]
    print(*[attempt(*call) for call in calls], flush=True); os.ftruncate(fd, 4096)
"""


class Machine:
    """A node's directory, and the shim's state beside it."""

    def __init__(self, root: Path) -> None:
        self.root = root / "data"
        self.state = root / "state"
        self.node = self.root / NODE
        self.node.mkdir(parents=True)
        self.control = DiskControl(self.state / NODE)

    def command(self, program: str) -> list[str]:
        return [sys.executable, "-c", HELPERS + program, f"{self.node}/broker.toml"]

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | shim_environment(disk_shim(), self.root, self.state)

    def run(self, program: str, *, die: bool = False) -> str:
        """Run a program as the node and return its output. With `die` it kills itself at the end."""
        command = self.command(textwrap.dedent(program) + DIE * die)
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        assert not done.stderr, done.stderr
        return done.stdout.strip()

    def lose_power(self, **how: object):
        return lose_power(self.state / NODE, self.node, **how)

    def read(self, name: str) -> bytes:
        return (self.node / name).read_bytes()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_power_loss_keeps_synced_writes_and_takes_back_others(machine):
    machine.run(
        """
        fd = opened("data"); sync_dir()
        os.pwrite(fd, b"a" * 10000, 0); os.fdatasync(fd)
        os.pwrite(fd, b"b" * 5000, 2000); os.pwrite(fd, b"c" * 5000, 9000); os.ftruncate(fd, 12000)
        """,
        die=True,
    )
    assert machine.read("data") == b"a" * 2000 + b"b" * 5000 + b"a" * 2000 + b"c" * 3000
    assert machine.lose_power().writes == 3
    assert machine.read("data") == b"a" * 10000


def test_a_node_without_the_disk_shim_is_refused(machine):
    """Without the shim, faults of the node's disk would do nothing, and every run with them would be valid."""
    subprocess.run(machine.command("pass"), check=True, timeout=60)
    with pytest.raises(TargetError, match=f"{NODE} runs without the disk shim"):
        machine.control.require_shim()
    machine.run("pass")
    machine.control.require_shim()


def test_every_way_to_write_is_taken_back(machine):
    machine.run(
        """
        with open("text", "wb") as file: file.write(b"old"); file.flush(); os.fsync(file.fileno())
        fd = opened("reserved"); os.pwrite(fd, b"12345678", 0); os.fdatasync(fd); sync_dir()
        os.posix_fallocate(fd, 0, 100000)
        os.pwritev(fd, [b"ab", b"cd"], 0); os.lseek(fd, 6, os.SEEK_SET)
        os.writev(fd, [b"x", b"yz"]); os.write(fd, b"!")
        with open("text", "ab") as file: file.write(b" and more")
        with open("text", "wb") as file: file.write(b"all else")
        """,
        die=True,
    )
    assert (machine.read("text"), machine.read("reserved")[:10]) == (b"all else", b"abcd56xyz!")
    machine.lose_power()
    assert (machine.read("text"), machine.read("reserved")) == (b"old", b"12345678")


def test_a_shimmed_sync_covers_only_writes_before_its_begin(machine):
    machine.control.hold("slow", [Rule("sync", delay_ms=2000, part="-n0/data")])  # long enough on a busy machine
    machine.run(
        """
        NANOSLEEP = ("230", "115")  # x86-64, arm64
        fd = opened("data")
        os.pwrite(fd, b"before", 0)
        thread = threading.Thread(target=os.fdatasync, args=(fd,)); thread.start()
        while open(f"/proc/self/task/{thread.native_id}/syscall").read().split()[0] not in NANOSLEEP: pass
        os.pwrite(fd, b"during", 100); thread.join(); sync_dir()
        """,
        die=True,
    )
    machine.lose_power()
    assert machine.read("data") == b"before"


def test_a_sync_that_fails_makes_nothing_durable(machine):
    machine.control.hold("eio", [Rule("sync", errno.EIO, part="-n0/data")])
    program = 'fd = opened("data"); os.pwrite(fd, b"x", 0); print(attempt(os.fdatasync, fd), flush=True); sync_dir()'
    assert machine.run(program, die=True) == str(errno.EIO)
    machine.lose_power()
    assert machine.read("data") == b""


@pytest.mark.parametrize(
    ("since", "left"),
    [
        ("", b"old bytes"),
        ('os.pwrite(fd, b"NEW", 0)', b"NEW bytes"),
        ('os.pwrite(fd, b"new bytes", 0)', b"new bytes"),
        ("fd = opened('data', os.O_RDWR | os.O_DSYNC); os.pwrite(fd, b'NEW', 0)", b"NEW bytes"),
    ],
)
@pytest.mark.parametrize("restarted", [False, True])
def test_writes_before_a_failed_sync_are_lost_unless_they_are_repeated(machine, since, left, restarted):
    """The kernel takes the page for clean."""
    machine.run('fd = opened("data"); os.pwrite(fd, b"old bytes", 0); os.fdatasync(fd); sync_dir()')
    machine.control.hold("eio", [Rule("sync", errno.EIO, part="-n0/data")])
    failing = 'fd = opened("data"); os.pwrite(fd, b"new bytes", 0); attempt(os.fdatasync, fd)\n'
    going_on = f"{since}\nos.fdatasync(fd)"
    if restarted:
        machine.run(failing, die=True)
        machine.control.release("eio")
        machine.run(f'fd = opened("data")\n{going_on}', die=True)
    else:
        waiting = 'print("failed", flush=True); sys.stdin.readline()\n'
        command = machine.command(failing + waiting + going_on + DIE)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=machine.environment, **pipes) as process:
            assert process.stdout.readline() == "failed\n"
            machine.control.release("eio")
            process.communicate("go on\n", timeout=60)
    assert machine.read("data") == (b"NEW bytes" if "NEW" in since else b"new bytes")
    machine.lose_power()
    assert machine.read("data") == left


def test_names_change_for_good_when_their_directory_is_synced(machine):
    program = """
        os.mkdir("kept"); os.mkdir("lost"); opened("old"); opened("target"); os.pwrite(opened("gone"), b"here", 0)
        for name in ("old", "target", "gone"): os.fsync(opened(name))
        sync_dir()
        os.rename("old", "target"); os.unlink("gone"); opened("made"); os.rmdir("lost"); os.mkdir("new")
        """
    machine.run(program, die=True)
    assert sorted(path.name for path in machine.node.iterdir()) == ["kept", "made", "new", "target"]
    machine.lose_power()
    assert sorted(path.name for path in machine.node.iterdir()) == ["gone", "kept", "lost", "old", "target"]
    assert machine.read("gone") == b"here"


def test_names_that_were_synced_stay_changed(machine):
    machine.run(
        """
        os.mkdir("snapshot.tmp"); fd = opened("snapshot.tmp/state"); os.pwrite(fd, b"all", 0); os.fsync(fd)
        sync_dir("snapshot.tmp"); os.rename("snapshot.tmp", "snapshot"); opened("spare"); os.rename("spare", "segment")
        sync_dir(); os.unlink("segment"); sync_dir()
        """,
        die=True,
    )
    assert machine.lose_power().names == 0
    assert [path.name for path in machine.node.iterdir()] == ["snapshot"]
    assert machine.read("snapshot/state") == b"all"
    assert list((machine.state / NODE / "kept").iterdir()) == []


def test_a_torn_power_loss_keeps_whole_sectors_of_some_writes(machine):
    machine.run(
        """
        fd = opened("data"); os.pwrite(fd, b"o" * (64 << 10), 0); os.fdatasync(fd); sync_dir()
        os.pwrite(fd, b"n" * (32 << 10), 16 << 10)
        """,
        die=True,
    )
    machine.lose_power(kept_share=0.5, rng=random.Random(1))
    torn = machine.read("data")
    sectors = [torn[start : start + 512] for start in range(0, len(torn), 512)]
    assert set(sectors) == {b"o" * 512, b"n" * 512}
    assert set(sectors[:32]) | set(sectors[96:]) == {b"o" * 512}


def test_without_a_power_loss_everything_stays(machine):
    machine.run('os.pwrite(opened("data"), b"x", 0)', die=True)
    forget(machine.state / NODE)
    assert machine.read("data") == b"x"
    machine.run('os.pwrite(opened("data"), b"y", 1)', die=True)
    machine.lose_power()
    assert machine.read("data") == b"x"


def test_a_restart_syncs_nothing_and_a_later_sync_covers_writes_before_it(machine):
    machine.run('fd = opened("data"); sync_dir(); os.pwrite(fd, b"one", 0); os.rename("data", "moved")', die=True)
    machine.run('fd = opened("moved"); os.pwrite(fd, b"two", 3); os.mkdir("made")', die=True)
    machine.lose_power()
    assert [path.name for path in machine.node.iterdir()] == ["data"]
    assert machine.read("data") == b""
    machine.run('fd = opened("data"); os.pwrite(fd, b"one", 0); os.rename("data", "moved")', die=True)
    machine.run('os.fdatasync(opened("moved")); sync_dir()', die=True)
    assert machine.lose_power() == (0, 0, 0)
    assert machine.read("moved") == b"one"


def test_writes_to_a_removed_file_are_taken_back_in_no_other_file(machine):
    """The number of a removed file is soon used by another file."""
    machine.run('fd = opened("gone"); os.pwrite(fd, b"old", 0); os.fdatasync(fd); sync_dir()', die=True)
    machine.run('os.pwrite(opened("gone"), b"new", 0)', die=True)
    machine.run(
        """
        os.unlink("gone"); sync_dir()
        for number in range(100): os.write(opened(f"file-{number}"), b"x"); sync_dir()
        """,
        die=True,
    )
    machine.lose_power()
    assert {machine.read(path.name) for path in machine.node.iterdir()} == {b""}


def test_continuous_syncs_leave_a_small_undo_record(machine):
    machine.run(
        """
        fd, other = opened("data"), opened("busy"); sync_dir()
        for number in range(2000):
            os.pwrite(fd, bytes([1 + number % 255]) * 16384, number % 100 * 16384); os.fdatasync(fd)
        """,
        die=True,
    )
    assert sum(path.stat().st_size for path in (machine.state / NODE / "undo").iterdir()) < 1 << 20
    assert machine.lose_power().writes == 0


def test_a_full_disk_refuses_writes_that_need_space_until_released(machine):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(machine.command(FILLING), env=machine.environment, **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        answers = []
        for change in (lambda: machine.control.hold("full", FULL_DISK), lambda: machine.control.release("full")):
            change()
            print(file=process.stdin, flush=True)
            answers.append(process.stdout.readline().split())
        process.stdin.close()
    assert answers == [["0", "28", "28", "28"], ["0", "0", "0", "0"]]


def test_at_the_open_file_limit_a_closed_file_makes_room_for_another(machine):
    machine.control.hold("few", [Rule("open", most_open=2)])
    said = machine.run(
        """
        first, second = opened("a"), opened("b")
        print(attempt(opened, "c"), os.path.exists("c"), attempt(os.open, "/dev/null", os.O_RDONLY))
        os.close(first); print(attempt(opened, "c"), attempt(opened, "d"))
        """
    )
    assert said.split() == [str(errno.EMFILE), "False", "0", "0", str(errno.EMFILE)]


@pytest.mark.parametrize(("permille", "used"), [(860, 0.86), (1000, 1.0), (0, None)])
def test_a_node_under_the_space_rule_sees_the_given_disk_usage(machine, permille, used):
    machine.control.hold("filled", [Rule("space", used_permille=permille)])
    told, elsewhere = machine.run(
        """
        for path in (".", "/"):
            found = os.statvfs(path); print(1 - found.f_bavail / found.f_blocks)
        """
    ).split()
    assert float(told) == pytest.approx(float(elsewhere) if used is None else max(used, float(elsewhere)), abs=0.01)


def test_rules_apply_only_to_files_with_the_named_path(machine):
    machine.control.hold("eio", [Rule("write", errno.EIO, part="/commitlog/"), Rule("read", errno.EIO, part="/index/")])
    said = machine.run(
        """
        os.mkdir("commitlog"); os.mkdir("index"); log, index = opened("commitlog/0"), opened("index/0")
        print(attempt(os.pwrite, log, b"x", 0), attempt(os.pwrite, index, b"x", 0),
              attempt(os.pread, log, 1, 0), attempt(os.pread, index, 1, 0))
        """
    )
    assert said.split() == [str(errno.EIO), "0", "0", str(errno.EIO)]


def test_the_wall_clock_jumps_and_drifts_and_the_other_clock_does_not(machine):
    program = "print(time.time(), time.monotonic())"
    machine.control.set_clock(offset_s=-3600.0)
    wall, monotonic = map(float, machine.run(program).split())
    assert time.time() - wall == pytest.approx(3600, abs=20)
    assert time.monotonic() - monotonic == pytest.approx(0, abs=20)
    machine.control.set_clock(drift_ppm=500_000)
    said = machine.run(
        """
        def both():
            while True:  # until nothing has come between the two
                before, wall, after = time.monotonic(), time.time(), time.monotonic()
                if after - before < 0.001:
                    return wall, before
        wall, monotonic = both(); time.sleep(0.2); wall_then, monotonic_then = both()
        print((wall_then - wall) / (monotonic_then - monotonic))
        """
    )
    assert float(said) == pytest.approx(1.5, abs=0.05)


def test_other_processes_and_ignored_names_are_left_alone(machine):
    machine.run('os.mkdir("log"); os.pwrite(opened("log/broker.log"), b"line", 0)', die=True)
    command = [sys.executable, "-S", "-c", f"open('{machine.node}/identity', 'w').write('x')", str(machine.root)]
    subprocess.run(command, env=machine.environment, check=True, timeout=60)
    machine.lose_power()
    assert (machine.read("log/broker.log"), machine.read("identity")) == (b"line", b"x")


def test_a_node_directory_survives_a_power_loss_once_its_name_is_synced(machine):
    for program, stays in (("os.mkdir(node)", False), ("os.mkdir(node); sync_dir(os.path.dirname(node))", True)):
        machine.node.rmdir()
        machine.run(program, die=True)
        machine.lose_power()
        assert machine.node.is_dir() == stays
        machine.node.mkdir(exist_ok=True)


def test_a_durably_created_log_directory_survives_a_power_loss(machine):
    machine.node.rmdir()
    machine.run(
        """
        from dledger.store.disk import make_directory_durably
        make_directory_durably(node)
        """,
        die=True,
    )
    machine.lose_power()
    assert machine.node.is_dir()
