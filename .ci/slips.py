"""Break promises on purpose, and see that the check that is named for each word of them fails.

    make slips                         everything but chaos runs
    make slips NAME=forward-timeout    one slip, or one known bug
    make slips PROMISE=power-loss      what breaks one promise
    make slips SAMPLE=10               so many slips, drawn by the commit's number

A slip is put into a copy of the tree, and only the check that its clause names runs there. A run catches the slip if it
fails with the assertion that the table names. Each check also runs once without a slip, because a check that fails
anyway catches nothing. A known bug has its own runner, and runs in this tree.

Results stay in `.slips/`. A run goes on where the last run of the same tree ended. The exit code is 0 if everything was
caught.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec
from anchors import AnchorError
from promise_table import Clause, Slip, Table, TableError, read
from slip_runs import SLOW_LIMIT_S, Copy, Verdict, run

ROOT = Path(__file__).resolve().parent.parent
STATE = Path(".slips")
PRODUCT = "product"
BY_HAND = "chaos"
"""Runner whose mutants are tried only if they are asked for."""
MUTANT_COMMANDS: dict[str, tuple[str, ...]] = {
    "simulator": ("-m", "dledger_sim.brokers", "mutants", "--jobs", "1"),
    "pipeline": ("-m", "dledger_sim.spark"),
    "explorer": ("-m", "pytest", "-q", "tests/sim/test_explorer.py", "-k"),
    "client": ("-m", "pytest", "-q", "tests/client/test_client_mutants.py", "-k"),
}


class Trial(NamedTuple):
    """One slip with its clause, or one known bug with its runner."""

    promise: str
    name: str
    runner: str
    clause: Clause | None = None
    slip: Slip | None = None


def trials(table: Table) -> Iterator[Trial]:
    """Yield everything that breaks a promise."""
    for promise, clause, slip in table.slips():
        yield Trial(promise.name, slip.name, PRODUCT, clause, slip)
    for runner, names in table.mutants.items():
        for name, promise_name in names.items():
            yield Trial(promise_name, name, runner)


def files_of(root: Path) -> list[str]:
    """Return the names of all files that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return sorted(name for name in listing.split("\0") if name and (root / name).is_file())


class Results:
    """Verdicts of this tree by trial, kept in a file. Those of another tree are forgotten."""

    def __init__(self, file: Path, tree: str) -> None:
        self._file, self._tree, self._lock = file, tree, threading.Lock()
        earlier = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        self._verdicts = earlier["verdicts"] if earlier.get("tree") == tree else {}

    def known(self, key: str) -> Verdict | None:
        """Return the verdict of an earlier run."""
        with self._lock:
            return Verdict(*self._verdicts[key]) if key in self._verdicts else None

    def note(self, key: str, verdict: Verdict) -> None:
        """Keep a verdict."""
        with self._lock:
            self._verdicts[key] = verdict
            self._file.parent.mkdir(exist_ok=True)
            self._file.write_text(json.dumps({"tree": self._tree, "verdicts": self._verdicts}), encoding="utf-8")


def tree_digest(root: Path, files: Sequence[str]) -> str:
    """Return a digest of everything but the documentation and the table."""
    digest = hashlib.sha256()
    for name in files:
        if not name.startswith("docs/") and not name.endswith(".md"):
            digest.update(name.encode() + b"\0" + hashlib.sha256((root / name).read_bytes()).digest())
    return digest.hexdigest()


class Bench:
    """Runs trials side by side, each in a copy of the tree that no other trial uses meanwhile."""

    def __init__(self, root: Path, files: Sequence[str], folder: Path, results: Results, *, clean: bool) -> None:
        self._root, self._files, self._folder, self._results, self._clean = root, files, folder, results, clean
        self._idle: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        self._clean_locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def run(self, trial: Trial) -> Verdict:
        """Run one trial, or return its verdict from an earlier run."""
        content = msgspec.json.encode((trial.runner, trial.name, trial.slip, trial.clause and trial.clause.check))
        key = f"{trial.runner} {trial.name} {hashlib.sha256(content).hexdigest()[:16]}"
        verdict = self._results.known(key)
        if verdict is None:
            verdict = self._run(trial)
            self._results.note(key, verdict)
        return verdict

    def _run(self, trial: Trial) -> Verdict:
        if trial.clause is None or trial.slip is None:
            return self._run_mutant(trial)
        clause, slip = trial.clause, trial.slip
        try:
            if self._clean:
                clean = self._run_clean(clause)
                if clean.caught:
                    return Verdict.escape(clean.told, clean.took_s)
            return self._in_copy(lambda copy: copy.run(clause, slip))
        except AnchorError as error:
            return Verdict.escape(str(error))

    def _run_clean(self, clause: Clause) -> Verdict:
        with self._lock:
            lock = self._clean_locks.setdefault(clause.check, threading.Lock())
        with lock:
            key = f"without a slip: {clause.check}"
            verdict = self._results.known(key)
            if verdict is None:
                verdict = self._in_copy(lambda copy: copy.run_clean(clause))
                self._results.note(key, verdict)
            return verdict

    def _in_copy(self, use: Callable[[Copy], Verdict]) -> Verdict:
        try:
            copy = self._idle.get_nowait()
        except queue.Empty:
            copy = Copy(self._root, self._files, self._folder)
        try:
            return use(copy)
        finally:
            self._idle.put(copy)

    def _run_mutant(self, trial: Trial) -> Verdict:
        began = time.monotonic()
        if trial.runner == BY_HAND:
            command = [str(Path(sys.executable).with_name("dledger")), "chaos", "run", "--mutant", trial.name]
            ended = run([*command, "--minutes", "0.7", "--seed", "1"], self._root, SLOW_LIMIT_S)
            caught = ended.code == 1
        else:
            ended = run([sys.executable, *MUTANT_COMMANDS[trial.runner], trial.name], self._root, SLOW_LIMIT_S)
            caught = ended.code == 0
        lines = ended.output.strip().splitlines() or [""]
        told = next((line for line in lines if trial.name in line), lines[-1])
        return Verdict(caught, told[:160] if ended.code is not None else "timed out", time.monotonic() - began)


def chosen(table: Table, options: argparse.Namespace, commit: int) -> list[Trial]:
    """Return the trials that the options ask for. Raises `TableError` if there is none."""
    found = [
        trial
        for trial in trials(table)
        if (not options.promise or trial.promise in options.promise)
        and (not options.name or trial.name in options.name)
        and (trial.runner in options.runner if options.runner else options.name or trial.runner != BY_HAND)
    ]
    if options.sample:
        quick = [trial for trial in found if trial.clause is not None and not trial.clause.is_slow]
        quick.sort(key=lambda trial: trial.name)
        found = Random(commit).sample(quick, min(options.sample, len(quick)))
    if not found:
        raise TableError("nothing breaks that: docs/proof/slips.md lists the promises, the slips and the known bugs")
    return found


def main(arguments: Sequence[str]) -> int:
    """Run trials, print the table and the time, and return the exit status."""
    parser = argparse.ArgumentParser(description="Break promises on purpose.")
    parser.add_argument("name", nargs="*", help="slips or known bugs")
    parser.add_argument("--promise", action="append", default=[], help="only what breaks this promise")
    parser.add_argument("--runner", action="append", default=[], help=f"only {PRODUCT}, simulator, explorer …")
    parser.add_argument("--sample", type=int, default=0, help="so many slips, drawn by the commit's number")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--without-clean", action="store_true", help="do not run each check without a slip first")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    try:
        found = chosen(read(ROOT), options, int(commit.strip(), 16))
    except TableError as error:
        print(error, file=sys.stderr)
        return 2
    files = files_of(ROOT)
    results = Results(ROOT / STATE / "results.json", tree_digest(ROOT, files))
    folder = Path(tempfile.mkdtemp(prefix="dledger-slips-"))
    rows: list[tuple[Trial, Verdict]] = []
    try:
        bench = Bench(ROOT, files, folder, results, clean=not options.without_clean)
        with ThreadPoolExecutor(options.jobs) as pool:
            futures = {pool.submit(bench.run, trial): trial for trial in found}
            for future in as_completed(futures):
                rows.append((futures[future], future.result()))
                print(_line(*rows[-1]), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    escaped = [row for row in rows if not row[1].caught]
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    print(f"\n{len(rows) - len(escaped)} of {len(rows)} caught, after {minutes} min {seconds} s")
    print(*(_line(*row) for row in escaped), sep="\n")
    return 1 if escaped else 0


def _line(trial: Trial, verdict: Verdict) -> str:
    said = "caught by" if verdict.caught else "NOT CAUGHT:"
    return f"{trial.promise:26} {trial.name:32} {said} {verdict.told} ({verdict.took_s:.1f} s)"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
