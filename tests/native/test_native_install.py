"""`make native` installs a build of the present sources, or reports that it does not."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from dledger_base import native_part

NATIVE = Path(__file__).parents[2] / "native"
HERE, OTHER = "0123abcd", "99999999"


def load_install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("native_install", NATIVE / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


install = load_install()


def make_wheel(directory: Path, name: str, sources: str | None) -> Path:
    wheel = directory / f"{name}.whl"
    mark = b"" if sources is None else b"dledger_native sources " + sources.encode()
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr("dledger_native/__init__.py", f"dledger_native sources {HERE}")
        files.writestr("dledger_native/dledger_native.abi3.so", b"\x7fELF" + mark + b"\0more")
    return wheel


def test_a_wheel_of_these_sources_is_taken(tmp_path: Path) -> None:
    wheels = [make_wheel(tmp_path, name, sources) for name, sources in (("a", OTHER), ("b", HERE), ("c", None))]
    for has_cargo in (False, True):
        what, said = install.choose(wheels, HERE, has_cargo=has_cargo)
        assert what == wheels[1]
        assert "b.whl, which was built from these sources" in said


@pytest.mark.parametrize("sources", [OTHER, None])
def test_a_wheel_of_other_sources_is_passed_over_where_these_can_be_built(tmp_path: Path, sources: str | None) -> None:
    what, said = install.choose([make_wheel(tmp_path, "old", sources)], HERE, has_cargo=True)
    assert what == NATIVE
    assert "passed over, built from other sources: old.whl" in said


@pytest.mark.parametrize("sources", [OTHER, None])
def test_a_wheel_of_other_sources_is_never_installed(tmp_path: Path, sources: str | None) -> None:
    what, said = install.choose([make_wheel(tmp_path, "old", sources)], HERE, has_cargo=False)
    assert what is None
    assert "passed over, built from other sources: old.whl" in said


def test_without_a_wheel_cargo_builds_or_nothing_is_installed() -> None:
    assert install.choose([], HERE, has_cargo=True)[0] == NATIVE
    what, said = install.choose([], HERE, has_cargo=False)
    assert what is None
    assert "everything works without it" in said


def test_a_change_of_any_source_is_another_checksum(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for name in ("Cargo.lock", "Cargo.toml", "build.rs", "src/lib.rs", "src/runs.rs"):
        (tmp_path / name).write_text("one")
    found = {install.sources_here(tmp_path)}
    for name in ("Cargo.lock", "Cargo.toml", "build.rs", "src/lib.rs", "src/runs.rs"):
        (tmp_path / name).write_text("two")
        found.add(install.sources_here(tmp_path))
    (tmp_path / "src" / "runs.rs").rename(tmp_path / "src" / "others.rs")
    found.add(install.sources_here(tmp_path))
    assert len(found) == 7


def test_a_node_loads_only_what_was_built_from_these_sources() -> None:
    assert f"dledger_native sources {install.sources_here()}" == native_part.SOURCES, "make fix"
