"""NATS JetStream: three servers, a stream with three replicas in files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.cluster import Flush
from bench.generator import LoadResult
from bench.peers.fetched import go_install, load_program
from bench.peers.go_load import GoLoad
from bench.peers.processes import HOST, Processes
from bench.peers.rows import Row
from bench.peers.service import Edges, Timing
from dledger_client.testing.ports import find_free_block

VERSION: Final = "v2.15.2"
NAMES: Final = ("n0", "n1", "n2")
START_S: Final = 30.0
_MODULE: Final = "github.com/nats-io/nats-server/v2"
_ROUTE: Final = 10
_CONFIG: Final = """\
server_name: {name}
listen: {host}:{port}
jetstream {{ store_dir: "{store}", max_mem: 256MB, max_file: 64GB, {sync} }}
cluster {{ name: bench, listen: {host}:{route}, routes: [{routes}] }}
"""


@dataclass(frozen=True, slots=True)
class RunningNats:
    """Three servers that take messages."""

    pids: Sequence[int]
    load: GoLoad

    def fill(self, messages: int) -> None:
        """Create the backlog of the row that consumes."""
        self.load.fill(messages)

    def measure(self, row: Row, timing: Timing, edges: Edges) -> LoadResult:
        """Run one row."""
        return self.load.measure(row, timing, edges)


class Nats:
    """NATS as a service. For rows with fdatasync, `sync_interval: always`; else NATS syncs every two minutes."""

    name = "NATS"
    about = f"NATS {VERSION}, one stream of 3 replicas in files; sync: sync_interval always"

    def fetch(self) -> None:
        """Build the server and the load generator."""
        go_install(_MODULE, VERSION)
        load_program()

    @contextmanager
    def running(self, flush: Flush, directory: Path) -> Iterator[RunningNats]:
        """Start three servers and stop them at the end of the block."""
        server, program = go_install(_MODULE, VERSION), load_program()
        base = find_free_block([*range(len(NAMES)), *range(_ROUTE, _ROUTE + len(NAMES))])
        routes = ", ".join(f"nats://{HOST}:{base + _ROUTE + number}" for number in range(len(NAMES)))
        with Processes(directory) as processes:
            for number, name in enumerate(NAMES):
                config = directory / f"{name}.conf"
                config.write_text(
                    _CONFIG.format(
                        name=name,
                        host=HOST,
                        port=base + number,
                        store=directory / name,
                        sync="sync_interval: always" if flush == "sync" else "",
                        route=base + _ROUTE + number,
                        routes=routes,
                    ),
                    encoding="utf-8",
                )
                processes.start(name, [str(server), "-c", str(config)])
            processes.wait_listening(range(base, base + len(NAMES)), START_S)
            load = GoLoad(program, "nats", [f"{HOST}:{base + number}" for number in range(len(NAMES))], batches=True)
            load.prepare()
            yield RunningNats(processes.pids(NAMES), load)
