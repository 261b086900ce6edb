"""Runs of checks in copies of the tree, with and without a slip, and the verdict on each run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from anchors import change_of
from promise_table import Clause, Slip

LIMIT_S = 240.0
SLOW_LIMIT_S = 1800.0
"""Maximum duration of a run in seconds; of a run of a slow check."""
REQUIRED_SHARE = 0.8
"""Share of a slip's runs that must catch it, if it has several."""


class Verdict(NamedTuple):
    """Outcome for one slip or mutant. `told` names the assertion, or says why this is no catch."""

    caught: bool
    told: str
    took_s: float = 0.0

    @classmethod
    def catch(cls, told: str, took_s: float = 0.0) -> Verdict:
        """Return that the assertion of this text failed."""
        return cls(caught=True, told=told, took_s=took_s)

    @classmethod
    def escape(cls, told: str, took_s: float = 0.0) -> Verdict:
        """Return that this is no catch, for this reason."""
        return cls(caught=False, told=told, took_s=took_s)


class Ended(NamedTuple):
    """Program that was run. `code` is None if it was stopped at its limit."""

    code: int | None
    output: str


class Copy:
    """Copy of a checkout in which one slip at a time is put into the product."""

    def __init__(self, source: Path, files: Sequence[str], folder: Path) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="tree-", dir=folder))
        for name in files:
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target, follow_symlinks=False)
        (self.root / ".venv").symlink_to(source / ".venv")
        self._report = self.root / ".slip-report.json"
        self._second = int(time.time()) - 1_000_000
        packages = {path.parent for path in self.root.glob("*/*dledger*") if (path / "__init__.py").is_file()}
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([*map(str, sorted(packages)), str(self.root / ".ci")])
        }

    def run_clean(self, clause: Clause) -> Verdict:
        """Run a check without any slip. "Caught" says that the check fails, so that it can catch nothing."""
        began = time.monotonic()
        ended, failures = self._check(clause, 0)
        told = _failed_text(failures) or f"exit code {ended.code}"
        return Verdict(ended.code != 0, f"the check fails without a slip: {told}", time.monotonic() - began)

    def run(self, clause: Clause, slip: Slip) -> Verdict:
        """Run a check with a slip, with as many seeds as the slip asks for."""
        began = time.monotonic()
        change = change_of(self.root, slip)
        original = (self.root / change.path).read_text(encoding="utf-8")
        self._write(change.path, change.text)
        try:
            verdicts = [self._judged(clause, slip, seed) for seed in range(slip.runs)]
        finally:
            self._write(change.path, original)
        caught = sum(verdict.caught for verdict in verdicts)
        is_enough = caught >= REQUIRED_SHARE * slip.runs
        told = next(verdict.told for verdict in verdicts if verdict.caught is is_enough)
        if slip.runs > 1:
            told = f"{caught} of {slip.runs} runs: {told}"
        return Verdict(is_enough, told, time.monotonic() - began)

    def _judged(self, clause: Clause, slip: Slip, seed: int) -> Verdict:
        ended, failures = self._check(clause, seed)
        if ended.code is None:
            return Verdict.escape("timed out")
        if ended.code == 0:
            return Verdict.escape("NOTHING FAILED")
        if clause.check.startswith("seed "):
            told = next((line for line in ended.output.splitlines() if slip.fails in line), "")
            return Verdict.catch(told) if told else Verdict.escape(f"failed elsewhere: {ended.output[-200:]}")
        for failure in failures:
            if told := _catch(failure, slip):
                return Verdict.catch(told)
        return Verdict.escape(f"failed elsewhere: {_failed_text(failures) or ended.output[-300:]}")

    def _check(self, clause: Clause, seed: int) -> tuple[Ended, list[dict[str, object]]]:
        self._report.unlink(missing_ok=True)
        limit = SLOW_LIMIT_S if clause.is_slow else LIMIT_S
        ended = run(_command(clause.check, self._report, seed), self.root, limit, self._environment)
        failures = json.loads(self._report.read_text(encoding="utf-8")) if self._report.is_file() else []
        return ended, failures

    def _write(self, path: Path, text: str) -> None:
        """Write a file with a time of its own: byte code is renewed by the second and the size of its source."""
        (self.root / path).write_text(text, encoding="utf-8")
        self._second += 1
        os.utime(self.root / path, (self._second, self._second))


def run(command: Sequence[str], folder: Path, limit_s: float, environment: Mapping[str, str] | None = None) -> Ended:
    """Run a program with all its children, which end with it."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_group(process)
        output.seek(0)
        return Ended(code, output.read().decode(errors="replace"))


def _end_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _command(check: str, report: Path, seed: int) -> list[str]:
    if check.startswith("seed "):
        _, scenario, number, seconds = check.split()
        program = [sys.executable, "-m", "dledger_sim.brokers", "--scenario", scenario, "--jobs", "1"]
        return [*program, "--first", str(int(number) + seed), "--seeds", "1", "--seconds", seconds]
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "slip_report", f"--slip-report={report}"]
    return [*pytest, f"--hypothesis-seed={seed}", "-p", "no:cacheprovider", *check.split()]


def _catch(failure: dict[str, object], slip: Slip) -> str:
    """Return the assertion that a failure shows, or an empty text if this is not the slip's."""
    statements, raised = failure["statements"], failure["raised"]
    if failure["when"] == "collect" or not isinstance(statements, list) or not isinstance(raised, list):
        return ""
    wanted = " ".join(slip.fails.split())
    kinds = [one for one in raised if slip.error in one["types"]]
    if not kinds:
        return ""
    if told := next((statement for statement in statements if wanted in statement), ""):
        return told
    return wanted if any(wanted in one["message"] for one in kinds) else ""


def _failed_text(failures: Sequence[dict[str, object]]) -> str:
    parts = []
    for failure in failures:
        raised, statements = failure["raised"], failure["statements"]
        assert isinstance(raised, list)
        assert isinstance(statements, list)
        what = f"{raised[0]['types'][0]}: {raised[0]['message'][:160]}" if raised else "not imported"
        parts.append(f"{failure['test']} ({failure['when']}): {statements[-1:] and statements[-1]} -> {what}")
    return "; ".join(parts)
