"""The wheel: only our packages, importable outside the checkout."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [Path(path).name for path in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]

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
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(folder)]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    return folder


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_wheel_installs_no_generic_name(wheel: Path) -> None:
    top = {name.split("/")[0] for name in names_in(wheel)}
    assert {name for name in top if not name.endswith(".dist-info")} == set(PACKAGES)
    # Spark imports every `pyspark_*` package to find data sources.
    assert all(name in {"dledger", "pyspark_dledger"} or name.startswith("dledger_") for name in PACKAGES)


def test_wheel_holds_code_and_types_and_no_litter(wheel: Path) -> None:
    files = [name for name in names_in(wheel) if ".dist-info/" not in name]
    assert {Path(name).suffix or Path(name).name for name in files} <= {
        ".py",
        ".typed",
        ".pyi",
        ".html",
        ".css",
        ".js",
        ".properties",
        ".c",
        ".h",
    }
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(files)


def test_wheel_carries_licence_and_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name.rpartition("/")[2]: name for name in archive.namelist() if ".dist-info/" in name}
        assert "LICENSE" in names
        assert b"dledger = dledger_admin.cli:main" in archive.read(names["entry_points.txt"])


def run_outside(tmp_path: Path, program: str, *arguments: str) -> str:
    """What a program prints that finds the wheel's packages only where it looks for them itself."""
    # -P and the empty PYTHONPATH keep the checkout away; the editable install's path entry is behind `site`.
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


def test_every_module_imports_outside_the_checkout(site: Path, tmp_path: Path) -> None:
    imported = run_outside(tmp_path, IMPORT_ALL, str(site), *PACKAGES)
    assert set(PACKAGES) <= set(imported.split())


# What the base install promises to import without any extra: the log, the wire, the client and the command.
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
