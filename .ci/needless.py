"""Plugin of pytest that finds needless tests: without them, other tests would still notice every mistake.

    make needless TESTS=tests/broker CODE=broker/dledger_broker MINUTES=60

1. Run the tests once. Note which jumps between lines each test makes in the code.
2. Make small changes of the code (`code_changes.py`), one at a time, each in a process of its own. The tests that reach
   the changed line run until one fails. Named tests run first, then those that failed for most changes, so that few
   tests notice all changes.
3. A test is needless if it never was the first to fail and makes no jump alone. The report names each needless test,
   and up to two tests that failed for changes of lines that it reaches.

A test is named if a page, `.ci`, the simulator or the chaos rig names it; it is never needless. Results stay in
`.needless/`; the next run continues from there.
"""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from types import CodeType, FunctionType
from typing import NamedTuple

import pytest
from _pytest.runner import runtestprotocol
from code_changes import Change, Place, changed_code, changes_in

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / ".needless"
FAILED, NOT_APPLICABLE = 2, 3
"""Exit codes of a process that tries a change."""
MAX_FUNCTIONS = 30
MAX_CASES = 6
"""Maximum numbers of tests that run for a change: functions, and cases of one function."""
MAX_SECONDS = 6.0
"""Maximum time in seconds that the tests of a change took with unchanged code."""
NAMED_IN = ("docs", "README.md", "CONTRIBUTING.md", ".ci", "simulation", "chaos")


class Run(NamedTuple):
    """The tests of a run, and what each did with unchanged code, by its number."""

    ids: list[str]
    seconds: list[float]
    failed: list[int]
    jumps: dict[str, dict[str, list[int]]]
    """By file and jump (`from,to`): the tests that made it."""

    def function(self, test: int) -> str:
        """Return the name of a test without its parameters."""
        return self.ids[test].partition("[")[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption("--code", required=True, help="folder of the code that is changed")
    parser.addoption("--minutes", type=float, default=60.0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Run the tests with changed code instead of running them once."""
    code = (ROOT / session.config.getoption("--code")).resolve()
    RESULTS.mkdir(exist_ok=True)
    name = code.relative_to(ROOT).as_posix().replace("/", ".")
    run = _load_run(session.items, code, RESULTS / f"{name}.run.json")
    trials = Trials(session.items, run, code, RESULTS / f"{name}.kills.json")
    trials.go_on(session.config.getoption("--minutes") * 60)
    trials.report()
    return True


def _passes(item: pytest.Item, following: pytest.Item | None) -> bool:
    reports = runtestprotocol(item, nextitem=following, log=False)
    return not any(report.failed for report in reports)


# ---------------------------------------------------------------- what tests reach


def _load_run(items: Sequence[pytest.Item], code: Path, file: Path) -> Run:
    """Return what the tests reach, from the file of an earlier run if the tests are the same."""
    ids = [item.nodeid for item in items]
    if file.exists():
        run = Run(**json.loads(file.read_text()))
        if run.ids == ids:
            return run
    child = os.fork()
    if child == 0:
        _measure_coverage(items, code, file)
    _, status = os.waitpid(child, 0)
    if status:
        raise pytest.UsageError("the tests could not be run with coverage: is the extra `needless` installed?")
    return Run(**json.loads(file.read_text()))


def _measure_coverage(items: Sequence[pytest.Item], code: Path, file: Path) -> None:
    """Run all tests in this process, write the file, and end."""
    status = 1
    try:
        import coverage

        measurement = coverage.Coverage(data_file=None, branch=True, source=[str(code)], messages=False)
        measurement.start()
        seconds, failed = [], []
        for number, item in enumerate(items):
            measurement.switch_context(str(number))
            began = time.monotonic()
            if not _passes(item, items[number + 1] if number + 1 < len(items) else None):
                failed.append(number)
            seconds.append(time.monotonic() - began)
        measurement.stop()
        data = measurement.get_data()
        jumps: dict[str, dict[str, list[int]]] = {name: defaultdict(list) for name in data.measured_files()}
        for number in range(len(items)):
            data.set_query_context(str(number))
            for name, file_jumps in jumps.items():
                for jump in data.arcs(name) or ():
                    file_jumps["{},{}".format(*jump)].append(number)
        file.write_text(json.dumps(Run([item.nodeid for item in items], seconds, failed, jumps)._asdict()))
        status = 0
    finally:
        os._exit(status)


def _find_named_tests() -> frozenset[str]:
    """Return the names of test functions and modules in the files of `NAMED_IN`."""
    files = subprocess.run(["git", "ls-files", *NAMED_IN], cwd=ROOT, capture_output=True, text=True, check=True)
    names: set[str] = set()
    for name in files.stdout.split():
        with suppress(UnicodeDecodeError):
            names.update(re.findall(r"\btest_\w+", (ROOT / name).read_text()))
    return frozenset(names)


# ---------------------------------------------------------------- changes


class Trials:
    """Changes of the code, and the tests that failed for them."""

    def __init__(self, items: Sequence[pytest.Item], run: Run, code: Path, file: Path) -> None:
        self._items = items
        self._run = run
        self._code = code
        self._file = file
        self._named_tests = _find_named_tests()
        self._tests_by_line = self._map_lines()
        self._tried = 0
        self._kills: Counter[str] = Counter()
        self._other_kills: dict[str, Counter[str]] = defaultdict(Counter)
        """By test function: the other tests that failed for changes of lines that it reaches."""
        if file.exists():
            earlier = json.loads(file.read_text())
            self._tried, self._kills = earlier["tried"], Counter(earlier["kills"])
            self._other_kills.update({name: Counter(others) for name, others in earlier["beside"].items()})
        self._functions: dict[tuple[str, Place], list[FunctionType]] = defaultdict(list)
        for function in gc.get_objects():
            if isinstance(function, FunctionType):
                code_object = function.__code__
                self._functions[
                    code_object.co_filename, Place(code_object.co_qualname, code_object.co_firstlineno)
                ].append(function)
        gc.collect()
        gc.freeze()  # pages that the processes share stay shared

    def _map_lines(self) -> Mapping[str, Mapping[int, set[int]]]:
        """Return the passing tests that reach each line, by file and line."""
        failed = set(self._run.failed)
        lines: dict[str, dict[int, set[int]]] = {}
        for file, jumps in self._run.jumps.items():
            tests_by_line = lines[file] = defaultdict(set)
            for jump, tests in jumps.items():
                for line in map(int, jump.split(",")):
                    tests_by_line[line].update(test for test in tests if test not in failed)
        return lines

    def _draw_changes(self) -> list[tuple[str, Change]]:
        """Return all changes that a test may notice: one of each function, then a second one of each, and so on."""
        numbered: list[tuple[int, str, Change]] = []
        count: Counter[tuple[str, Place]] = Counter()
        all_changes = [
            (file, change)
            for file, lines in sorted(self._tests_by_line.items())
            for change in changes_in(Path(file).read_text())
            if lines.get(change.line)
        ]
        Random(0).shuffle(all_changes)
        for file, change in all_changes:
            count[file, change.place] += 1
            numbered.append((count[file, change.place], file, change))
        numbered.sort(key=lambda item: item[0])
        return [(file, change) for _, file, change in numbered]

    def go_on(self, seconds: float) -> None:
        """Try the changes that earlier runs have not tried, for this time."""
        end, changes = time.monotonic() + seconds, self._draw_changes()
        while self._tried < len(changes) and time.monotonic() < end:
            file, change = changes[self._tried]
            self._tried += 1
            self._try_change(file, change)
            if self._tried % 100 == 0:
                self._save()
                print(f"{self._tried} of {len(changes)} changes, {len(self._kills)} tests", flush=True)
        self._save()

    def _save(self) -> None:
        results = {"tried": self._tried, "kills": self._kills, "beside": self._other_kills}
        self._file.write_text(json.dumps(results))

    def _try_change(self, file: str, change: Change) -> None:
        reached = self._tests_by_line[file][change.line]
        chosen = self._choose_tests(reached)
        functions = self._functions.get((file, change.place), [])
        with suppress(LookupError, SyntaxError):
            code = changed_code(Path(file).read_text(), file, change)
            limit = 3 * sum(self._run.seconds[test] for test in chosen) + 3
            failed = self._find_first_failure(functions, code, chosen, limit) if functions else None
            if failed is not None:
                name = self._run.function(failed)
                self._kills[name] += 1
                for other in {self._run.function(test) for test in reached} - {name}:
                    self._other_kills[other][name] += 1

    def _choose_tests(self, reached: Iterable[int]) -> list[int]:
        """Return the tests that run for a change: named ones, then those that failed most often, then the fastest."""

        def key(test: int) -> tuple[bool, int, float]:
            return (
                not self._is_named(self._run.function(test)),
                -self._kills[self._run.function(test)],
                self._run.seconds[test],
            )

        cases: Counter[str] = Counter()
        chosen: list[int] = []
        total = 0.0
        for test in sorted(reached, key=key):
            name, seconds = self._run.function(test), self._run.seconds[test]
            is_too_much = len(cases) >= MAX_FUNCTIONS and name not in cases
            if is_too_much or cases[name] >= MAX_CASES or (chosen and total + seconds > MAX_SECONDS):
                continue
            cases[name] += 1
            total += seconds
            chosen.append(test)
        return chosen

    def _is_named(self, function: str) -> bool:
        return function.rpartition("::")[2] in self._named_tests

    def _find_first_failure(
        self, functions: Sequence[FunctionType], code: CodeType, chosen: Sequence[int], seconds: float
    ) -> int | None:
        """Run tests with changed code in another process. Return the test that failed or took far too long, if any."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            self._run_changed(functions, code, chosen, writer)
        os.close(writer)
        exit_code: int | None = None
        end = time.monotonic() + seconds
        while exit_code is None and time.monotonic() < end:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                exit_code = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.002)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # with all processes that the tests started
        if exit_code is None:
            os.waitpid(child, 0)
        begun_tests = os.read(reader, 4096)
        os.close(reader)
        return chosen[begun_tests[-1]] if begun_tests and exit_code not in (0, NOT_APPLICABLE) else None

    def _run_changed(
        self, functions: Sequence[FunctionType], code: CodeType, chosen: Sequence[int], writer: int
    ) -> None:
        status = FAILED
        try:
            os.setpgid(0, 0)
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 1)
            os.dup2(null, 2)
            try:
                for function in functions:
                    function.__code__ = code
            except ValueError:  # it closes over other variables
                os._exit(NOT_APPLICABLE)
            for number, test in enumerate(chosen):
                os.write(writer, bytes([number]))
                if not _passes(self._items[test], None):
                    os._exit(FAILED)
            status = 0
        finally:
            os._exit(status)

    # ---------------------------------------------------------------- the report

    def report(self) -> None:
        """Write the needless tests, each with tests that failed for changes of the same lines."""
        run, failed = self._run, {self._run.function(test) for test in self._run.failed}
        jumps: dict[str, set[tuple[str, str]]] = defaultdict(set)
        makers: dict[tuple[str, str], set[str]] = defaultdict(set)
        for file, of_file in run.jumps.items():
            for jump, tests in of_file.items():
                for name in {run.function(test) for test in tests}:
                    jumps[name].add((file, jump))
                    makers[file, jump].add(name)
        needless = {name for name in jumps if not self._kills[name] and not self._is_named(name)} - failed
        missing = {jump: names for jump, names in makers.items() if names <= needless}
        while missing:
            count = Counter(name for names in missing.values() for name in names)
            best = max(count, key=lambda name: (count[name], name))
            needless.discard(best)
            missing = {jump: names for jump, names in missing.items() if best not in names}
        others = {name: [other for other, _ in self._other_kills[name].most_common(2)] for name in sorted(needless)}
        text = [f"{name}: {', '.join(other_names)}" for name, other_names in others.items()]
        report = self._file.with_suffix("").with_suffix(".txt")
        report.write_text("\n".join(text) + "\n")
        print(f"{len(needless)} of {len(jumps)} test functions are needless after {self._tried} changes: {report}")
