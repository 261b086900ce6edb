"""`DLEDGER_NATIVE` decides whether the native part is used. If that is impossible, nothing starts."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from dledger.errors import ConfigError
from dledger_base import native_part


@pytest.fixture
def installed(monkeypatch):
    part = types.ModuleType("dledger_native")
    part.INTERFACE, part.SOURCES, part.__version__ = native_part.INTERFACE, native_part.SOURCES, "1.2.3"
    part.on_panic = lambda tell: setattr(part, "tell", tell)
    monkeypatch.setitem(sys.modules, "dledger_native", part)
    return part


@pytest.mark.parametrize("wanted", [None, "", "1", "0"])
def test_a_native_part_that_is_installed_is_used_unless_0_forces_python(installed, monkeypatch, wanted):
    assert native_part.load(wanted) is (None if wanted == "0" else installed)
    monkeypatch.setattr(native_part, "PART", installed)
    assert native_part.version() == "1.2.3"


def test_a_fault_of_the_native_part_is_one_line_of_the_log(installed, caplog):
    native_part.load(None)
    installed.tell("scan_runs", "panicked at src/records.rs:1:2")
    (line,) = caplog.messages
    assert line.startswith("event=native_part_failed function=scan_runs error='panicked at src/records.rs:1:2'")
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.parametrize("wanted", ["2", "yes", "no"])
def test_another_value_is_an_error(installed, wanted):
    with pytest.raises(ConfigError, match=f"DLEDGER_NATIVE={wanted}: expected 0"):
        native_part.load(wanted)


@pytest.mark.parametrize("wanted", [None, "1"])
@pytest.mark.parametrize(("name", "value"), [("INTERFACE", 9), ("SOURCES", "dledger_native sources 01234567")])
def test_a_native_part_of_other_sources_is_not_used(installed, wanted, name, value):
    setattr(installed, name, value)
    with pytest.raises(ConfigError, match=r"native part 1\.2\.3 at .* was built from other sources: make native"):
        native_part.load(wanted)


def test_without_a_native_part_python_does_everything_unless_told_otherwise(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.delitem(sys.modules, "dledger_native", raising=False)
    assert native_part.load(None) is None
    with pytest.raises(ConfigError, match="DLEDGER_NATIVE=1, and no native part is installed: make native"):
        native_part.load("1")


NO_MODULE = "none ({folder} is no native part: remove it, or make native)"
OTHER_PLATFORM = (
    "none (the native part cannot be loaded ({folder}/dledger_native.abi3.so: file too short): make native)"
)


@pytest.mark.parametrize(("file", "told"), [("", NO_MODULE), ("dledger_native.abi3.so", OTHER_PLATFORM)])
@pytest.mark.parametrize("wanted", ["", "0"])
def test_remains_of_a_native_part_are_skipped_and_reported(tmp_path, file, told, wanted):
    """Remains of a native part are an empty folder of its name, or a wheel for another platform.

    Python itself skips the empty folder if the real part is installed behind it.
    """
    folder = tmp_path / "dledger_native"
    folder.mkdir()
    if file:
        (folder / "__init__.py").write_text("from .dledger_native import *\n")
        (folder / file).touch()
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from dledger_base import native_part as n; print(n.version())"
    )
    environment = {**os.environ, "DLEDGER_NATIVE": wanted}

    def version(place: Path) -> str:
        command = [sys.executable, "-c", program, str(place)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    without = version(tmp_path / "nothing")
    is_passed_over = without == "none" or file
    assert version(tmp_path) == (told.format(folder=folder) if wanted != "0" and is_passed_over else without)


def test_an_invalid_native_setting_stops_a_node_start_and_no_other_command(tmp_path):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *arguments]
        environment = {**os.environ, "DLEDGER_NATIVE": "yes"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    config = tmp_path / "broker.toml"
    config.touch()
    node = run("dledger_broker", "--config", str(config))
    assert (node.returncode, node.stderr.splitlines()) == (
        2,
        ["broker: DLEDGER_NATIVE=yes: expected 0 (Python alone), 1 (the native part is required) or nothing"],
    )
    command = run("dledger_admin", "--version")
    assert (command.returncode, command.stderr) == (0, "")
