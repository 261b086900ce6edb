"""Runner for classes of RocketMQ's suite, each in a JVM of its own, and the outcomes of their tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.conformance.rocketmq_suite.sources import HERE, SuiteError

CLASS_SECONDS: Final = 480
"""Time limit for one class. Some wait for two minutes several times before they give up."""
_OPENED: Final = ("java.nio", "java.lang", "java.util")
"""Packages of Java that RocketMQ and the suite's mocks reach into."""


@dataclass(frozen=True, slots=True)
class Row:
    """Outcome of one test of the suite.

    `outcome` is "passed", "failed", "ignored" or "cut off" by the time limit. `reason` is the text of the test.
    """

    test: str
    outcome: str
    seconds: float = 0.0
    reason: str = ""


def run_class(folder: Path, namesrv: str, name: str, methods: Collection[str] = ()) -> list[Row]:
    """Run a class, or only some of its methods, against the cluster of a name server."""
    java = shutil.which("java")
    if java is None:
        raise SuiteError("install a JDK (11 or newer)")
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        results = Path(scratch) / "results"
        properties = {
            "suite.namesrv.port": namesrv.rpartition(":")[2],
            "suite.log": logs / f"{name}.client.log",
            "rocketmq.namesrv.addr": namesrv,
            "rmq.logback.configurationFile": HERE / "logback.xml",
            "java.io.tmpdir": scratch,
            "user.home": scratch,
        }
        command = [java, "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        command += [f"-D{key}={value}" for key, value in properties.items()]
        command += ["-cp", f"classes{os.pathsep}lib/*", "SuiteRunner", f"org.apache.rocketmq.test.{name}"]
        command += [str(results), "only" if methods else "except", *methods]
        ending = _run(command, folder, logs / f"{name}.log")
        text = results.read_text(encoding="utf-8") if results.exists() else ""
    return rows_of(name, text, ending)


def rows_of(name: str, results: str, ending: str) -> list[Row]:
    """Return the outcomes of a class's tests, from the lines of its runner and the way in which its process ended."""
    rows: dict[str, Row] = {}
    for line in results.splitlines():
        kind, method, *rest = line.split("\t")
        if kind == "began":
            rows[method] = Row(f"{name}#{method}", "cut off", reason=ending)
        else:
            outcome, seconds, reason = rest
            rows[method] = Row(f"{name}#{method}", outcome, float(seconds), reason)
    if not rows:
        rows[""] = Row(name, "failed", reason=f"no test ran: {ending}")
    return list(rows.values())


@dataclass(frozen=True, slots=True)
class Verdict:
    """Rows of a run, sorted by their meaning."""

    passed: list[Row]
    known: list[Row]
    red: list[Row]
    ignored: list[Row]
    mended: list[Row]
    """Rows that passed although they are known to fail."""

    @classmethod
    def of(cls, rows: Collection[Row], known: Mapping[str, str]) -> Verdict:
        """Judge rows. Those that are known to fail get the known reason."""
        passed = [row for row in rows if row.outcome == "passed"]
        ignored = [row for row in rows if row.outcome == "ignored"]
        bad = [row for row in rows if row.outcome not in ("passed", "ignored")]
        return cls(
            passed,
            [replace(row, reason=known[row.test]) for row in bad if row.test in known],
            [row for row in bad if row.test not in known],
            ignored,
            [row for row in passed if row.test in known],
        )

    def table(self) -> str:
        """Return a table with a line for each test that did not pass, and the number of tests of each kind."""
        sections = (("red", self.red), ("known difference", self.known), ("passes, known to fail", self.mended))
        lines = [f"{kind:22} {row.test}\n{'':22} {row.reason}" for kind, rows in sections for row in rows]
        run = len(self.passed) + len(self.known) + len(self.red)
        lines.append(
            f"{len(self.passed)} of {run} tests passed, {len(self.known)} known differences, {len(self.red)} red;"
            f" {len(self.ignored)} that the suite ignores"
        )
        return "\n".join(lines)


def _run(command: list[str], folder: Path, log: Path) -> str:
    """Run a class's process to its end, and return how it ended."""
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=CLASS_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"its class took longer than {CLASS_SECONDS} s"
    return f"its process ended with {done.returncode}"
