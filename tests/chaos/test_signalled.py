"""No action that needs a dead process happens during its start, and nobody starts one meanwhile."""

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dledger_admin.cluster.ports import has_ended
from dledger_chaos import signalled
from dledger_chaos.errors import TargetError
from dledger_chaos.processes import wait_gone
from dledger_chaos.signalled import SignalledNodes

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"


def python(code: str) -> subprocess.Popen[bytes]:
    """Start a process that runs `code`, and wait for its first line."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


class Sleepers(SignalledNodes):
    """Nodes whose pids are found only once they are up, as with pid files. `may_come_up` lets them."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.launching = asyncio.Event()
        self.may_come_up = asyncio.Event()

    def pid(self, node_id):
        process = self.processes.get(node_id)
        return process.pid if process is not None and process.poll() is None else None

    async def _launch(self, node_id):
        if self.pid(node_id) is not None:
            return
        self.launching.set()
        await self.may_come_up.wait()
        self.processes[node_id] = python(SLEEPER)

    def _find_disk_directories(self, node_id):
        if node_id == "c":
            raise TargetError("c has no shim")
        return self.directory / f"{node_id}.state", self.directory / node_id

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate()


@pytest.fixture
async def nodes(tmp_path: Path):
    nodes = Sleepers(tmp_path)
    yield nodes
    nodes.end()


@pytest.mark.parametrize("how", ["kill", "lose_power", "stop_node"])
async def test_a_node_that_is_being_started_is_killed_once_its_pid_is_known(nodes: Sleepers, how: str):
    starting = asyncio.create_task(nodes.start_node("a"))
    await nodes.launching.wait()
    harm = {
        "kill": lambda: nodes.kill(["a", "b"]),
        "lose_power": lambda: nodes.lose_power(["a", "b"], 0.0, 1),
        "stop_node": lambda: nodes.stop_node("a"),
    }
    harming = asyncio.create_task(harm[how]())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not harming.done()
    nodes.may_come_up.set()
    await asyncio.gather(starting, harming)
    assert nodes.pid("a") is None
    assert nodes.was_stopped(nodes.processes["a"].pid)


async def test_a_node_is_not_started_while_its_files_are_rolled_back(nodes: Sleepers, monkeypatch: pytest.MonkeyPatch):
    rolling_back = asyncio.Event()
    done = threading.Event()
    loop = asyncio.get_running_loop()

    def lose_power(*_: object, **__: object) -> None:
        loop.call_soon_threadsafe(rolling_back.set)
        done.wait()

    monkeypatch.setattr(signalled, "lose_power", lose_power)
    nodes.may_come_up.set()
    losing = asyncio.create_task(nodes.lose_power(["a"], 0.0, 1))
    await rolling_back.wait()
    starting = asyncio.create_task(nodes.start_node("a"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not nodes.launching.is_set()
    done.set()
    await asyncio.gather(losing, starting)
    assert nodes.pid("a") is not None


async def test_a_node_without_a_shim_loses_no_power_and_is_not_killed_for_it(nodes: Sleepers):
    nodes.may_come_up.set()
    await nodes.start_node("c")
    with pytest.raises(TargetError, match="no shim"):
        await nodes.lose_power(["c"], 0.0, 1)
    assert nodes.pid("c") is not None


async def test_a_process_with_a_living_thread_has_not_ended():
    code = "import ctypes, threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
    code += "print('up', flush=True)\nctypes.CDLL(None).pthread_exit(None)"
    process = python(code)
    try:
        stat = Path(f"/proc/{process.pid}/stat")
        async with asyncio.timeout(20):
            while stat.read_text().rpartition(")")[2].split()[0] != "Z":  # noqa: ASYNC110 - no event reports on another process
                await asyncio.sleep(0.01)
        assert not has_ended(process.pid)
        with pytest.raises(TargetError, match="have not ended"):
            await wait_gone([process.pid], timeout_s=0.0)
        process.send_signal(signal.SIGKILL)
        await wait_gone([process.pid])
    finally:
        process.kill()
        process.communicate()
