"""The two wheels contain only our packages, and can be imported outside the checkout."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import dledger_sim

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [Path(path).name for path in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
PROOF = ["dledger_chaos", "dledger_sim"]

IMPORT_ALL = """
import importlib, pkgutil, sys
site, *packages = sys.argv[1:]
sys.path.insert(0, site)
for name in packages:
    package = importlib.import_module(name)
    assert package.__file__.startswith(site), package.__file__
    print(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if module.name.rpartition(".")[2] != "__main__":
            importlib.import_module(module.name)
            print(module.name)
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Build the wheel of the product, and that of its proof."""
    folder = tmp_path_factory.mktemp("wheels")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    for project in (ROOT, ROOT / "chaos"):
        subprocess.run(build, cwd=project, check=True, capture_output=True)
    return sorted(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(wheels: list[Path]) -> Path:
    return wheels[0]


@pytest.fixture(scope="module")
def proof_wheel(wheels: list[Path]) -> Path:
    return wheels[1]


def installed(folder: Path, *wheels: Path) -> Path:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(folder)]
    subprocess.run([*install, *map(str, wheels)], check=True, capture_output=True)
    return folder


def test_an_editable_installation_runs_the_simulator_of_this_tree() -> None:
    """A copy of it would be tested in its place after each change, and nobody would notice."""
    assert Path(dledger_sim.__file__).is_relative_to(ROOT / "simulation")


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("site"), wheel)


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_each_wheel_installs_its_own_packages_and_no_generic_name(wheel: Path, proof_wheel: Path) -> None:
    for built, packages in ((wheel, PACKAGES), (proof_wheel, PROOF)):
        top = {name.split("/")[0] for name in names_in(built)}
        assert {name for name in top if not name.endswith(".dist-info")} == set(packages)
        assert {f"{package}/py.typed" for package in packages} <= set(names_in(built))
    # Spark imports every `pyspark_*` package to find data sources.
    assert all(name in {"dledger", "pyspark_dledger"} or name.startswith("dledger_") for name in PACKAGES)


def test_wheel_holds_code_and_types_and_no_litter(wheel: Path) -> None:
    files = [name for name in names_in(wheel) if ".dist-info/" not in name]
    endings = {".py", ".typed", ".pyi", ".html", ".css", ".js", ".svg", ".properties", ".proto", ".c", ".h"}
    assert {Path(name).suffix or Path(name).name for name in files} <= endings


def test_wheel_carries_licence_and_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name.rpartition("/")[2]: name for name in archive.namelist() if ".dist-info/" in name}
        assert "LICENSE" in names
        assert b"dledger = dledger_admin.cli:main" in archive.read(names["entry_points.txt"])


def run_outside(tmp_path: Path, program: str, *arguments: str) -> str:
    """Run a program that finds the wheel's packages only where it looks for them itself, and return its output."""
    # -P and the empty PYTHONPATH keep the checkout away. The editable install's path entry depends on `site`.
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        cwd=tmp_path,
        env={"PYTHONPATH": "", "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_imports_outside_the_checkout_and_the_product_needs_no_proof(site: Path, tmp_path: Path) -> None:
    imported = run_outside(tmp_path, IMPORT_ALL, str(site), *PACKAGES)
    assert set(PACKAGES) <= set(imported.split())


CHAOS = "import sys; sys.path.insert(0, sys.argv.pop(1)); from dledger_admin.cli import main; main()"


def test_the_second_wheel_brings_the_command_chaos(site: Path, wheel: Path, proof_wheel: Path, tmp_path: Path) -> None:
    both = installed(tmp_path / "both", wheel, proof_wheel)
    assert "faults" in run_outside(tmp_path, CHAOS, str(both), "chaos", "--help")
    assert set(PROOF) <= set(run_outside(tmp_path, IMPORT_ALL, str(both), *PROOF).split())


CLIENT = "import sys; sys.path.insert(0, sys.argv[1]); import dledger_client; print(*sys.modules)"


def test_the_client_loads_no_module_of_the_log(site: Path, tmp_path: Path) -> None:
    loaded = run_outside(tmp_path, CLIENT, str(site)).split()
    assert "dledger_base.tls" in loaded
    assert [name for name in loaded if name.partition(".")[0] in {"dledger", "dledger_broker", "dledger_namesrv"}] == []


# Packages that the base install promises without any extra: the log, the wire, the client and the command.
BASE_ENTRY_POINTS = ["dledger", "dledger_remoting", "dledger_client", "dledger_admin.cli"]

IMPORT_WITHOUT_EXTRAS = """
import importlib, sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"aiohttp", "isal", "prometheus_client", "rich", "uvloop"}:
            raise ModuleNotFoundError(f"{name} is of an extra", name=name)

sys.meta_path.insert(0, Missing())
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


def test_base_install_imports_without_any_extra(site: Path, tmp_path: Path) -> None:
    run_outside(tmp_path, IMPORT_WITHOUT_EXTRAS, str(site), *BASE_ENTRY_POINTS)
