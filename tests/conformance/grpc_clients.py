"""Fixtures of RocketMQ 5's own gRPC clients: where their packages come from, and how their drivers are started."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from dledger_client import SyncAdmin
from dledger_client.testing import LocalCluster

HERE = Path(__file__).resolve().parent
INSTALL_SECONDS = 300
PYTHON, NODE = "python-5.1.2", "node-1.0.8"

Command = tuple[list[str], dict[str, str]]
"""Arguments that start a driver, and its environment. The proxies' addresses follow."""


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


def python_command(request: pytest.FixtureRequest) -> Command:
    """Return what starts PyPI's client. Its environment is its own, because its package has the C++ client's name."""
    wanted = (HERE / "python5" / "requirements.txt").read_text()
    folder, done = _folder(request, PYTHON, f"{sys.version} {wanted}")
    python = folder / "environment" / "bin" / "python"
    if done is not None:
        venv.create(folder / "environment", with_pip=True, clear=True)
        requirements = str(HERE / "python5" / "requirements.txt")
        _install(folder, str(python), "-m", "pip", "install", "--quiet", "-r", requirements)
        done()
    return [str(python), str(HERE / "python5" / "driver.py")], {}


def node_command(request: pytest.FixtureRequest, tool: Callable[[str], str]) -> Command:
    """Return what starts npm's client. `tool` finds Node's programs."""
    wanted = (HERE / "node5" / "package.json").read_text()
    folder, done = _folder(request, NODE, wanted)
    if done is not None:
        (folder / "package.json").write_text(wanted)
        _install(folder, tool("npm"), "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")
        done()
    return [tool("node"), str(HERE / "node5" / "driver.js")], {"NODE_PATH": str(folder / "node_modules")}


def create_topic(cluster: LocalCluster, name: str, kind: str = "MIXED", queues: int = 4) -> None:
    """Create a topic for messages of a kind."""
    with SyncAdmin(cluster.namesrv) as admin:
        admin.create_topic(name, queues=queues, attributes={"message.type": kind})
