"""RocketMQ: a master and two slaves. Sends are acknowledged when the master and one slave have them.

This is the only form of replication in 5.3.3 that syncs before it acknowledges. RocketMQ's DLedger mode flushes every
10 ms, even if configured otherwise, and acknowledges before. A slave answers when the message is in its page cache. In
rows with fdatasync the message is thus on one disk, not on a majority of disks. The master is fixed here. The
controller mode adds an election to the same replication.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.cluster import Flush
from bench.generator import LoadResult
from bench.peers.fetched import maven_jars, tool
from bench.peers.kafka import WARM_UP
from bench.peers.processes import HOST, Processes
from bench.peers.remoting_load import RemotingLoad, build_generators
from bench.peers.rows import ROWS, Row
from bench.peers.service import Edges, Timing
from dledger_chaos.rocketmq_jars import MODULES, VERSION
from dledger_chaos.rocketmq_servers import Server, broker_config, config_path, namesrv_config, server_command
from dledger_client import ClientError, SyncAdmin
from dledger_client.testing.ports import find_free_block

NODES: Final = ("n0", "n1", "n2")
NAMESRV: Final = "namesrv"
GROUP: Final = "broker-a"
STATUS_S: Final = 2.0
START_S: Final = 90.0
_STEP: Final = 10
_NAMESRV_PORT: Final = 50
_REPLICATION: Final = {
    "mappedFileSizeCommitLog": 268435456,
    "totalReplicas": 3,
    "inSyncReplicas": 2,
    "minInSyncReplicas": 2,
    "useReentrantLockWhenPutMessage": "true",
    "waitTimeMillsInSendQueue": 10000,
    "timerWheelEnable": "false",
}


@dataclass(frozen=True, slots=True)
class RunningRocketmq:
    """Three brokers that take messages."""

    pids: Sequence[int]
    load: RemotingLoad

    def fill(self, messages: int) -> None:
        """Create the backlog of the row that consumes."""
        self.load.fill(messages)

    def measure(self, row: Row, timing: Timing, edges: Edges) -> LoadResult:
        """Run one row."""
        return self.load.measure(row, timing, edges)


class Rocketmq:
    """RocketMQ as a service. For rows with fdatasync, `SYNC_FLUSH` on every broker; else `ASYNC_FLUSH`."""

    name = "RocketMQ"
    about = (
        f"RocketMQ {VERSION}, a master and two slaves, SYNC_MASTER, inSyncReplicas=2, heap of 1 GB; sync: SYNC_FLUSH, "
        "where a slave answers from its page cache"
    )

    def fetch(self) -> None:
        """Fetch RocketMQ's jars, and compile the load generators."""
        tool("java", "runs RocketMQ")
        _fetch_jars()
        build_generators()

    @contextmanager
    def running(self, flush: Flush, directory: Path) -> Iterator[RunningRocketmq]:
        """Start a name server and three brokers, and stop them at the end of the block."""
        generator, tail = build_generators()
        offsets = [number * _STEP + port for number in range(len(NODES)) for port in range(4)]
        base = find_free_block([*offsets, _NAMESRV_PORT])
        # a broker also listens on the port two below
        ports = [base + 2 + number * _STEP for number in range(len(NODES))]
        with Processes(directory) as processes:
            home = directory / NAMESRV
            _start(processes, home, "namesrv", namesrv_config(home, base + _NAMESRV_PORT))
            processes.wait_listening([base + _NAMESRV_PORT], START_S)
            namesrv = f"{HOST}:{base + _NAMESRV_PORT}"
            # Slaves learn the master's address when they register, so the master comes first. `haMasterAddress` does
            # not help: it is read before there is a client that could use it, and never again.
            for numbers in ((0,), (1, 2)):
                for number in numbers:
                    home = directory / NODES[number]
                    _start(processes, home, "broker", _make_config(home, flush, namesrv, number, ports[number]))
                for number in numbers:
                    processes.wait(partial(_is_registered, namesrv, number), f"{NODES[number]} is registered", START_S)
            load = RemotingLoad(generator, tail, ports[0])
            load.await_send(START_S)  # needs the master and one slave
            load.measure(ROWS[f"{flush}-64x1"], WARM_UP, Edges(_do_nothing, _do_nothing))
            yield RunningRocketmq(processes.pids(NODES), load)


def _fetch_jars() -> Path:
    modules = [("org.apache.rocketmq", f"rocketmq-{module}", VERSION) for module in MODULES]
    return maven_jars(f"rocketmq-{VERSION}", modules)


def _make_config(home: Path, flush: Flush, namesrv: str, number: int, port: int) -> str:
    role = {
        "brokerId": number,
        "brokerRole": "SLAVE" if number else "SYNC_MASTER",
        "flushDiskType": "SYNC_FLUSH" if flush == "sync" else "ASYNC_FLUSH",
    }
    return broker_config(
        home, namesrv=namesrv, group=GROUP, advertised=HOST, port=port, ha_port=port + 1, more=role | _REPLICATION
    )


def _is_registered(namesrv: str, number: int) -> bool:
    """Return whether the name server knows the broker with this number."""
    try:
        with SyncAdmin(namesrv, timeout=STATUS_S) as admin:
            groups = admin.broker_groups()
    except ClientError:
        return False
    return GROUP in groups and number in groups[GROUP].broker_addrs


def _start(processes: Processes, home: Path, server: Server, config: str) -> None:
    home.mkdir()
    config_path(home).write_text(config, encoding="utf-8")
    processes.start(home.name, *server_command(tool("java", "runs RocketMQ"), _fetch_jars(), server, home))


def _do_nothing() -> None:
    """Do nothing at the edges of a load that is not counted."""
