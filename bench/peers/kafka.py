"""Kafka: three brokers that are also controllers (KRaft). A majority of the in-sync replicas acknowledges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.cluster import Flush
from bench.generator import LoadResult
from bench.peers.fetched import load_program, maven_jars, run, tool
from bench.peers.go_load import GoLoad
from bench.peers.processes import HOST, Processes
from bench.peers.rows import ROWS, Row
from bench.peers.service import Edges, Timing
from dledger_client.testing.ports import find_free_block

VERSION: Final = "4.1.2"
NAMES: Final = ("n0", "n1", "n2")
START_S: Final = 90.0
FORMAT_S: Final = 60.0
WARM_UP: Final = Timing(seconds=10.0, warmup_s=0.0, backlog=0)
"""A load that is not counted: the compiler of a fresh JVM is busy for about that long."""
_CONTROLLER: Final = 10
_LOG4J: Final = "2.25.1"
_ARTIFACTS: Final = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", _LOG4J),
    ("org.apache.logging.log4j", "log4j-core", _LOG4J),
)
_CLUSTER_ID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
_CONFIG: Final = """\
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={data}
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
offsets.topic.num.partitions=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
auto.create.topics.enable=false
unclean.leader.election.enable=false
{flush}
"""
_LOGGING: Final = """\
status=warn
rootLogger.level=warn
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %c{1} %m%n
"""


@dataclass(frozen=True, slots=True)
class RunningKafka:
    """Three brokers that take messages."""

    pids: Sequence[int]
    load: GoLoad

    def fill(self, messages: int) -> None:
        """Create the backlog of the row that consumes."""
        self.load.fill(messages)

    def measure(self, row: Row, timing: Timing, edges: Edges) -> LoadResult:
        """Run one row."""
        return self.load.measure(row, timing, edges)


class Kafka:
    """Kafka as a service. For rows with fdatasync, `log.flush.interval.messages=1`; else the kernel decides."""

    name = "Kafka"
    about = (
        f"Kafka {VERSION}, KRaft, 4 partitions of 3 replicas, acks=all, min.insync.replicas=2, no compression, heap of "
        "768 MB; sync: log.flush.interval.messages=1"
    )

    def fetch(self) -> None:
        """Fetch Kafka's jars, and build the load generator."""
        tool("java", "runs Kafka")
        _fetch_jars()
        load_program()

    @contextmanager
    def running(self, flush: Flush, directory: Path) -> Iterator[RunningKafka]:
        """Start three brokers and stop them at the end of the block."""
        program = load_program()
        base = find_free_block([*range(len(NAMES)), *range(_CONTROLLER, _CONTROLLER + len(NAMES))])
        logging = directory / "log4j2.properties"
        logging.write_text(_LOGGING, encoding="utf-8")
        java = [tool("java", "runs Kafka"), "-Xms256m", "-Xmx768m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
        java += [f"-Dlog4j2.configurationFile={logging}", "-cp", f"{_fetch_jars()}/*"]
        with Processes(directory) as processes:
            for number, name in enumerate(NAMES):
                config = _write_config(directory, name, number, base, flush)
                formatting = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(config)]
                run([*java, *formatting], cwd=directory, timeout_s=FORMAT_S)
                processes.start(name, [*java, "kafka.Kafka", str(config)])
            processes.wait_listening(range(base, base + len(NAMES)), START_S)
            load = GoLoad(program, "kafka", [f"{HOST}:{base + number}" for number in range(len(NAMES))], batches=False)
            load.prepare()
            load.measure(ROWS[f"{flush}-64x1"], WARM_UP)
            yield RunningKafka(processes.pids(NAMES), load)


def _fetch_jars() -> Path:
    return maven_jars(f"kafka-{VERSION}", _ARTIFACTS)


def _write_config(directory: Path, name: str, number: int, base: int, flush: Flush) -> Path:
    voters = ",".join(f"{voter}@{HOST}:{base + _CONTROLLER + voter}" for voter in range(len(NAMES)))
    config = directory / f"{name}.properties"
    config.write_text(
        _CONFIG.format(
            number=number,
            voters=voters,
            host=HOST,
            port=base + number,
            controller=base + _CONTROLLER + number,
            data=directory / name,
            flush="log.flush.interval.messages=1" if flush == "sync" else "",
        ),
        encoding="utf-8",
    )
    return config
