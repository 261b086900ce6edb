"""Fixtures of RocketMQ 5's own gRPC clients: where their packages come from, and how their drivers are started."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from dledger_client import SyncAdmin
from dledger_client.testing import LocalCluster

HERE = Path(__file__).resolve().parent
INSTALL_SECONDS = 300
BUILD_SECONDS = 1800
"""Time limit for the first build of Rust's client with all that it needs."""
PYTHON, NODE = "python-5.1.2", "node-1.0.8"
JAVA, GO, RUST = "java-5.2.0", "go-5.1.3", "rust-5.0.0"
"""Names of the clients that only `make test-clients` runs. `go5/go.mod` and `rust5/Cargo.toml` name the versions, too.
"""

CLIENTS: Final = (PYTHON, NODE, JAVA, GO, RUST) if os.environ.get("APACHE_CLIENTS") else (PYTHON, NODE)
LACKS: Final[Mapping[str, frozenset[str]]] = {GO: frozenset({"recall"}), RUST: frozenset({"push", "hide", "recall"})}
"""Calls that a client does not have."""


class Program(NamedTuple):
    """Driver of one client: the arguments that start it, which the proxies' addresses follow, and its environment."""

    client: str
    command: list[str]
    environment: dict[str, str]

    def at_home(self, folder: Path) -> list[str]:
        """Return the arguments with which the client writes its log below a folder: Java's client ignores HOME."""
        first, *others = self.command
        return [first, f"-Duser.home={folder}", *others] if self.client == JAVA else self.command


def having(*calls: str) -> pytest.MarkDecorator:
    """Return the mark of tests for clients that have all of these calls."""
    clients = [name for name in CLIENTS if LACKS.get(name, frozenset()).isdisjoint(calls)]
    return pytest.mark.parametrize("grpc_program", clients, indirect=True)


def only(*clients: str) -> pytest.MarkDecorator:
    """Return the mark of tests for some clients."""
    return pytest.mark.parametrize("grpc_program", [name for name in CLIENTS if name in clients], indirect=True)


def _folder(request: pytest.FixtureRequest, name: str, wanted: str) -> tuple[Path, Callable[[], None] | None]:
    """Return the folder of a package in pytest's cache, and a function to call once it is installed, None if it is."""
    cache = request.config.cache
    assert cache is not None
    folder = cache.mkdir(name)
    installed = folder / "installed.txt"
    if installed.exists() and installed.read_text() == wanted:
        return folder, None
    return folder, lambda: installed.write_text(wanted) and None


def _install(folder: Path, *command: str) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{command[0]} could not install a gRPC client within {INSTALL_SECONDS} s")
    if done.returncode != 0:
        pytest.skip(f"a gRPC client cannot be installed: {(done.stderr or done.stdout).strip()[-500:]}")


def python_command(request: pytest.FixtureRequest) -> Program:
    """Return what starts PyPI's client. Its environment is its own, because its package has the C++ client's name."""
    wanted = (HERE / "python5" / "requirements.txt").read_text()
    folder, done = _folder(request, PYTHON, f"{sys.version} {wanted}")
    python = folder / "environment" / "bin" / "python"
    if done is not None:
        venv.create(folder / "environment", with_pip=True, clear=True)
        requirements = str(HERE / "python5" / "requirements.txt")
        _install(folder, str(python), "-m", "pip", "install", "--quiet", "-r", requirements)
        done()
    return Program(PYTHON, [str(python), str(HERE / "python5" / "driver.py")], {})


def node_command(request: pytest.FixtureRequest, tool: Callable[[str], str]) -> Program:
    """Return what starts npm's client. `tool` finds Node's programs."""
    wanted = (HERE / "node5" / "package.json").read_text()
    folder, done = _folder(request, NODE, wanted)
    if done is not None:
        (folder / "package.json").write_text(wanted)
        _install(folder, tool("npm"), "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")
        done()
    command = [tool("node"), str(HERE / "node5" / "driver.js")]
    return Program(NODE, command, {"NODE_PATH": str(folder / "node_modules")})


def rust_command(request: pytest.FixtureRequest, cargo: str) -> Program:
    """Return what starts crates.io's client. The first build takes minutes."""
    cache = request.config.cache
    assert cache is not None
    folder = cache.mkdir(RUST)
    build = [cargo, "build", "--release", "--locked", "--quiet", "--target-dir", str(folder)]
    done = subprocess.run(build, cwd=HERE / "rust5", capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return Program(RUST, [str(folder / "release" / "conformance5")], {})


def create_topic(cluster: LocalCluster, name: str, kind: str = "MIXED", queues: int = 4) -> None:
    """Create a topic for messages of a kind."""
    with SyncAdmin(cluster.namesrv) as admin:
        admin.create_topic(name, queues=queues, attributes={"message.type": kind})
