"""Processes of one broker group, each of a chosen build: this checkout, or a work tree of a commit.

All use the packages of this interpreter. The project's own packages come from the build's folders.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dledger.net.proof import prove
from dledger_client.testing.ports import find_free_block

GROUP: Final = "broker-a"
SECRET: Final = b"the secret of two builds"
PATIENCE_S: Final = 20.0
"""Time limit of every wait, in seconds."""
ROOT: Final = Path(__file__).resolve().parents[2]


class MixedError(Exception):
    """Error of builds that do not work together, or of one that does not work. The text says what was seen."""


def until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
    """Poll until a condition holds. Raise `MixedError` with its name if it does not hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise MixedError(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class Build:
    """Project code below a folder."""

    name: str
    root: Path

    def environment(self) -> dict[str, str]:
        """Return variables with which Python takes the project's packages from here, before the installed ones."""
        table = tomllib.loads((self.root / "pyproject.toml").read_text(encoding="utf-8"))
        folders = table["tool"]["hatch"]["build"]["dev-mode-dirs"]
        return os.environ | {"PYTHONPATH": os.pathsep.join(str(self.root / folder) for folder in folders)}

    def check(self) -> None:
        """Raise `MixedError` if Python would take a package from another place."""
        program = "import dledger, dledger_broker; print(dledger.__file__); print(dledger_broker.__file__)"
        done = subprocess.run(
            [sys.executable, "-c", program], env=self.environment(), capture_output=True, text=True, check=False
        )
        files = done.stdout.split()
        if len(files) != 2 or not all(Path(file).is_relative_to(self.root) for file in files):
            raise MixedError(f"the {self.name} build is not what runs: {done.stdout}{done.stderr}")


@contextmanager
def work_tree(ref: str, folder: Path) -> Iterator[Build]:
    """Check a commit out into a new folder, for as long as the context lasts."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), ref], check=True)
    try:
        yield Build("old", folder)
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


class NodeProcess:
    """One node, with its directory and ports. `port` is the first of four."""

    def __init__(self, node_id: str, build: Build, folder: Path, port: int) -> None:
        self.node_id = node_id
        self.build = build
        self.directory = folder / node_id
        self.port = port
        self._config = folder / f"{node_id}.toml"
        self._output = folder / f"{node_id}.out"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Return the address for clients."""
        return f"127.0.0.1:{self.port}"

    def configure(self, peers: Mapping[str, int], secret: Path) -> None:
        """Write the configuration. `peers` are the other nodes' first ports."""
        lines = [
            f'broker_group = "{GROUP}"',
            f'node_id = "{self.node_id}"',
            f'data_dir = "{self.directory}"',
            f'secret_file = "{secret}"',
            f"port = {self.port}",
            "segment_bytes = 1048576",
            "max_message_bytes = 65536",
            "snapshot_interval_s = 1",
            "drain_ms = 0",
            *(f'[peers.{node_id}]\naddress = "127.0.0.1:{port + 1}"' for node_id, port in peers.items()),
        ]
        self._config.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def start(self, *, bootstrap: bool) -> None:
        """Start the process. It is ready once `status` is not None."""
        command = [sys.executable, "-m", "dledger_broker", "--config", str(self._config)]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, "--bootstrap"] if bootstrap else command,
                env=self.build.environment(),
                cwd=self.build.root,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def status(self) -> dict[str, Any] | None:
        """Return the node's status, or None if it does not answer. Raise `MixedError` if it has ended or failed."""
        if self._process is not None and self._process.poll() is not None:
            text = self._output.read_text(encoding="utf-8", errors="replace")
            raise MixedError(f"{self} ended with {self._process.returncode}: {text[-2000:]}")
        try:
            code, text, _ = self._ask("GET", "/status")
        except (OSError, http.client.HTTPException):
            return None
        found: dict[str, Any] = json.loads(text)
        if code != 200 or found["failure"]:
            raise MixedError(f"{self} answers {code}: {text}")
        return found

    def hand_over(self, node_id: str) -> None:
        """Let this node, which leads, hand over to another one."""
        path = f"/leader/{node_id}"
        _, _, challenge = self._ask("PUT", path)
        code, text, _ = self._ask("PUT", path, prove(SECRET, "PUT", path, challenge))
        if code != 200:
            raise MixedError(f"{self} does not hand over to {node_id}: {code} {text}")

    def _ask(self, method: str, path: str, authorization: str = "") -> tuple[int, str, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port + 2, timeout=PATIENCE_S)
        try:
            connection.request(method, path, headers={"Authorization": authorization} if authorization else {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.getheader("WWW-Authenticate", "")
        finally:
            connection.close()

    def stop(self) -> None:
        """End the process, if it runs, and wait for it."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __str__(self) -> str:
        return f"{self.node_id} ({self.build.name} build)"


class MixedGroup:
    """Group with a node for each of `builds`. The first node founds the group."""

    def __init__(self, folder: Path, builds: list[Build]) -> None:
        secret = folder / "secret"
        secret.write_bytes(SECRET)
        secret.chmod(0o600)
        base = find_free_block(range(4 * len(builds)), first=21_000, last=30_000)
        self.nodes = [
            NodeProcess(f"{GROUP}-n{number}", build, folder, base + 4 * number) for number, build in enumerate(builds)
        ]
        for node in self.nodes:
            node.configure({other.node_id: other.port for other in self.nodes if other is not node}, secret)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start all nodes and wait until each is a voter. Stop them at the end."""
        try:
            for number, node in enumerate(self.nodes):
                node.start(bootstrap=number == 0)
            until(lambda: self.leader() is not None, "a leader")
            until(self._all_vote, "every node votes")
            yield
        finally:
            for node in self.nodes:
                node.stop()

    def leader(self) -> NodeProcess | None:
        """Return the node that leads and accepts messages."""
        for node in self.nodes:
            status = node.status()
            if status is not None and status["role"] == "leader" and status["ready"]:
                return node
        return None

    def have_lead(self, node: NodeProcess) -> None:
        """Move the leadership to a node."""
        now = self.leader()
        if now is not None and now is not node:
            now.hand_over(node.node_id)
        until(lambda: self.leader() is node, f"{node} leads")

    def is_even(self) -> bool:
        """Return whether every node has applied the leader's whole log."""
        statuses = [node.status() for node in self.nodes]
        ends = [None if status is None else status["last_index"] for status in statuses]
        applied = [None if status is None else status["applied_index"] for status in statuses]
        return None not in ends and len({*ends, *applied}) == 1

    def _all_vote(self) -> bool:
        leader = self.leader()
        status = None if leader is None else leader.status()
        return status is not None and len(status["voters"]) == len(self.nodes)
