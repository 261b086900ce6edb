"""What `DLEDGER_NATIVE` says is used, or nothing starts."""

import os
import subprocess
import sys
import types

import pytest

from dledger import native_part
from dledger.errors import ConfigError


@pytest.fixture
def installed(monkeypatch):
    part = types.ModuleType("dledger_native")
    part.INTERFACE, part.__version__ = native_part.INTERFACE, "1.2.3"
    part.on_panic = lambda tell: setattr(part, "tell", tell)
    monkeypatch.setitem(sys.modules, "dledger_native", part)
    return part


@pytest.mark.parametrize("wanted", [None, "", "1"])
def test_a_native_part_that_is_installed_is_used(installed, wanted):
    assert native_part.load(wanted) is installed


def test_a_fault_of_the_native_part_is_one_line_of_the_log(installed, caplog):
    native_part.load(None)
    installed.tell("scan_runs", "panicked at src/records.rs:1:2")
    (line,) = caplog.messages
    assert line.startswith("event=native_part_failed function=scan_runs error='panicked at src/records.rs:1:2'")
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_0_forces_python(installed):
    assert native_part.load("0") is None


@pytest.mark.parametrize("wanted", ["2", "yes", "no"])
def test_another_value_is_an_error(installed, wanted):
    with pytest.raises(ConfigError, match=f"DLEDGER_NATIVE={wanted}: expected 0"):
        native_part.load(wanted)


def test_a_native_part_of_another_version_is_not_used(installed):
    installed.INTERFACE += 1
    assert native_part.load(None) is None
    with pytest.raises(ConfigError, match=r"native part 1\.2\.3 is of another version"):
        native_part.load("1")


def test_without_a_native_part_python_does_everything_unless_told_otherwise(monkeypatch):
    monkeypatch.setitem(sys.modules, "dledger_native", None)  # as if it were not installed
    assert native_part.load(None) is None
    with pytest.raises(ConfigError, match="DLEDGER_NATIVE=1, and the native part cannot be loaded"):
        native_part.load("1")


def test_the_version_tells_what_is_used(installed, monkeypatch):
    monkeypatch.setattr(native_part, "PART", installed)
    assert native_part.version() == "1.2.3"


def test_what_cannot_be_obeyed_keeps_a_node_from_starting_and_nobody_else(tmp_path):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *arguments]
        environment = {**os.environ, "DLEDGER_NATIVE": "yes"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    config = tmp_path / "broker.toml"
    config.touch()
    node = run("dledger_broker", "--config", str(config))
    assert (node.returncode, node.stderr.splitlines()) == (
        2,
        ["broker: DLEDGER_NATIVE=yes: expected 0 (Python alone), 1 (not without the native part) or nothing"],
    )
    command = run("dledger_admin", "--version")
    assert (command.returncode, command.stderr) == (0, "")


@pytest.mark.parametrize(
    ("found", "wanted", "told"),
    [
        (object(), "", native_part.PASSED_OVER),
        (object(), "0", native_part.NONE),
        (None, "", native_part.NONE),
    ],
)
def test_one_that_is_installed_and_not_used_is_told_of(monkeypatch, found, wanted, told):
    monkeypatch.setattr(native_part, "PART", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: found)
    monkeypatch.setenv(native_part.VARIABLE, wanted)
    assert native_part.version() == told
