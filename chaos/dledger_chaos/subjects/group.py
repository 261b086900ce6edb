"""Group of three processes of one subject, which can be started, killed and paused."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from dledger.testing.ports import free_ports
from dledger_chaos.subjects.client import SubjectClient
from dledger_chaos.subjects.registers import Json

Kind = Literal["register_node", "pysyncobj_node"]
Address = tuple[str, int]

START_S = 30.0
POLL_S = 0.02


class SubjectProcess:
    """One node's process, its directory `DIR/<node id>` and its log `DIR/<node id>.log`."""

    def __init__(
        self, kind: Kind, directory: Path, config: Mapping[str, object], environment: Mapping[str, str]
    ) -> None:
        self.node_id = str(config["node_id"])
        self.log = directory / f"{self.node_id}.log"
        self._kind = kind
        self._config_path = directory / f"{self.node_id}.json"
        self._config_path.write_text(json.dumps(config))
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Pid of the process, None while it does not run."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self, *prefix: str) -> None:
        """Start the process unless it runs. `prefix` is a command that runs it, such as a tracer."""
        if self.pid is not None:
            return
        module = f"dledger_chaos.subjects.{self._kind}"
        command = [*prefix, sys.executable, "-m", module, "--config", str(self._config_path)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **self._environment}
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self.pid is not None and self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process (SIGKILL), and wait until it has ended."""
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until it has ended; returns its exit code.  Raises `subprocess.TimeoutExpired`."""
        return None if self._process is None else self._process.wait(timeout_s)


class SubjectGroup:
    """The nodes' processes. They listen at `client_addresses` and `peer_addresses`; `a` dials `b` at `dial[(a, b)]`."""

    def __init__(
        self,
        kind: Kind,
        directory: Path,
        *,
        node_ids: tuple[str, ...] = ("a", "b", "c"),
        dial: Mapping[tuple[str, str], Address] | None = None,
        client_addresses: Mapping[str, Address] | None = None,
        peer_addresses: Mapping[str, Address] | None = None,
        environments: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self.node_ids = node_ids
        ports = iter(free_ports(2 * len(node_ids)))
        self.client_addresses = dict(client_addresses or {name: ("127.0.0.1", next(ports)) for name in node_ids})
        self.peer_addresses = dict(peer_addresses or {name: ("127.0.0.1", next(ports)) for name in node_ids})
        self.processes: dict[str, SubjectProcess] = {}
        for name in node_ids:
            peers = {
                other: (dial or {}).get((name, other), self.peer_addresses[other])
                for other in node_ids
                if other != name
            }
            config = {
                "node_id": name,
                "data_dir": str(directory / name),
                "client": self.client_addresses[name],
                "bind": self.peer_addresses[name],
                "peers": peers,
                "bootstrap": kind == "register_node" and name == node_ids[0],
                "segment_bytes": 1 << 26,
            }
            self.processes[name] = SubjectProcess(kind, directory, config, (environments or {}).get(name, {}))

    def __getitem__(self, node_id: str) -> SubjectProcess:
        return self.processes[node_id]

    def start(self, *prefix: str) -> None:
        """Start all processes that do not run."""
        for process in self.processes.values():
            process.start(*prefix)

    def stop(self) -> None:
        """Kill all processes, even paused ones."""
        for process in self.processes.values():
            process.kill()

    async def statuses(self) -> dict[str, dict[str, Json]]:
        """Return the status of each node that answers."""
        found: dict[str, dict[str, Json]] = {}
        for name in self.node_ids:
            async with SubjectClient(self.client_addresses[name]) as client:
                answer = await client.call("status", timeout_s=1.0)
                if answer.ok and isinstance(answer.value, dict):
                    found[name] = answer.value
        return found

    async def leader(self, *, voters: int = 1, timeout_s: float = START_S) -> str:
        """Wait for a leader that takes operations and counts at least `voters`; returns its id.

        Raises `TimeoutError`.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                for name, status in (await self.statuses()).items():
                    members = status["voters"]
                    enough = isinstance(members, list) and len(members) >= voters
                    if status["role"] == "leader" and status["ready"] and enough:
                        return name
                await asyncio.sleep(POLL_S)


@contextmanager
def running(group: SubjectGroup, *prefix: str) -> Iterator[SubjectGroup]:
    """Start a group, and kill it whatever happens."""
    try:
        group.start(*prefix)
        yield group
    finally:
        group.stop()
