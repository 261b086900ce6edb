"""Run the tests, several processes of pytest (lanes) side by side.

* `test.py` runs the tests of `make test`: all that are not marked `long`.
* `test.py long` runs the rest, which is `make test-all`.
* `test.py native` runs nodes and requests on the native part.

Lanes are independent of each other. Most of them wait for servers, timers and stock clients more than they compute, so
together they keep two processors busy. `LANES` names the tests of each lane, and `OTHER` is the lane of the rest. The
output of `OTHER` is shown as it comes, that of the other lanes when they have ended.

Each run ends with its failures, its costs (`billing.py`), and the tests that it left out. JUnit files and costs stay in
`.test-results/`. The exit code is 0 only if every test passed and the run kept its budget (`budget.toml`).
"""

from __future__ import annotations

import compileall
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import billing

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ".test-results"
OTHER = "all other tests"
LANES = {
    "chaos": ("tests/chaos",),
    "client": ("tests/client",),
    "console": ("tests/console",),
    "features in real time": (
        "tests/broker/features/class_filters",
        "tests/broker/features/client_membership",
        "tests/broker/features/ranges",
    ),
    "frameworks": ("tests/integrations",),
    "frameworks: Celery": ("tests/integrations/celery",),
    "frameworks: FastStream": ("tests/integrations/faststream",),
    "integration": ("tests/integration",),
    "killed nodes": (
        "tests/integration/test_client_cluster.py",
        "tests/integration/test_kill_directories.py",
        "tests/integration/test_kill_nodes.py",
    ),
    "log": ("tests/dledger",),
    "proxy": ("tests/proxy",),
    "simulator": ("tests/sim",),
    "stock clients: ali-ons": ("tests/conformance/test_ali_ons.py", "tests/conformance/test_ali_ons_rows.py"),
    "stock clients: C++": ("tests/conformance/test_cpp_client.py", "tests/conformance/test_cpp_rows.py"),
    "stock clients: gRPC": ("tests/conformance/test_grpc_clients.py",),
    "stock clients: others": ("tests/conformance",),
    "stock clients: raw frames": ("tests/conformance/test_raw_rows.py", "tests/conformance/test_raw_pop_rows.py"),
    "virtual time": (
        "tests/broker/features",
        "tests/broker/kernel",
        "tests/broker/requests",
        "tests/broker/toy",
        "tests/dledger/store",
        "tests/paper",
        "tests/recorded",
        "tests/remoting",
    ),
    OTHER: ("tests",),
}
"""The paths of each lane. A path that lies below that of another lane belongs to its own lane alone."""
AT_LOW_PRIORITY = {"simulator", "virtual time"}
"""Lanes on a simulated clock: their results do not depend on their share of the processors."""
ON_NATIVE = (
    "tests/native",
    "tests/dledger/test_node.py",
    "tests/dledger/test_orderly_stop.py",
    "tests/dledger/test_full_disk.py",
    "tests/dledger/net",
    "tests/broker/kernel/test_writer_on_a_real_node.py",
    "tests/broker/views/test_views_on_a_real_node.py",
    "tests/integration/test_disk_full.py",
    "tests/recorded",
)
REQUESTS_ON_NATIVE = (
    "tests/broker/features/sending",
    "tests/broker/features/quotas",
    "tests/broker/features/accounts",
    "tests/broker/features/pulling",
    "tests/broker/features/resets",
    "tests/broker/features/retries",
    "tests/broker/frontend",
)
LOW_PRIORITY = ("nice", "-n", "15")
NO_TESTS = 5
"""Exit code of pytest if a lane has no test of the kind that is asked for."""
SHOWN_LINES = 30
"""Maximum number of lines of a failure's text that are repeated at the end."""


class Lane(NamedTuple):
    """One process of pytest, its output if that is not shown as it comes, and the files that it writes."""

    name: str
    process: subprocess.Popen[bytes]
    output: IO[bytes] | None
    junit: Path
    costs: Path


class Starter(NamedTuple):
    """Starts the lanes of one run."""

    results: Path
    selected: Sequence[str]

    def lane(
        self, file: str, name: str, arguments: Sequence[str], *, priority: Sequence[str] = (), shown: bool = False
    ) -> Lane:
        """Start a process of pytest that writes its results to files of this name."""
        junit, cost = self.results / f"{file}.xml", self.results / f"{file}.json"
        result_options = [f"--junitxml={junit}", "-p", "tests.costs", f"--costs={cost}"]
        command = [*priority, sys.executable, "-m", "pytest", *result_options, *self.selected, *arguments]
        output = None if shown else tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the lane
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT if output else None)
        return Lane(name, process, output, junit, cost)

    def python(self) -> list[Lane]:
        """Start the lanes of all tests."""
        return [
            self.lane(
                name.replace(": ", "-").replace(" ", "-"),
                name,
                [*paths, *ignored(below(name))],
                priority=LOW_PRIORITY if name in AT_LOW_PRIORITY else (),
                shown=name == OTHER,
            )
            for name, paths in LANES.items()
        ]

    def native(self) -> list[Lane]:
        """Start the lanes on the native part."""
        requests = ["-p", "tests.native.on_native", *REQUESTS_ON_NATIVE]
        return [
            self.lane("requests", "requests on the native part", requests),
            self.lane("nodes", "nodes on the native part", ON_NATIVE, shown=True),
        ]


def below(name: str) -> Iterator[str]:
    """Yield the paths of other lanes that lie below those of this lane."""
    folders = tuple(f"{path}/" for path in LANES[name])
    return (path for other, paths in LANES.items() if other != name for path in paths if path.startswith(folders))


def ignored(paths: Iterable[str]) -> list[str]:
    """Return the options that make pytest leave out some paths."""
    return [f"--ignore={path}" for path in paths]


def finish(lane: Lane) -> int:
    """Wait for a lane, show its output, and return its exit code."""
    code = lane.process.wait()
    if lane.output is not None:
        lane.output.seek(0)
        sys.stdout.flush()
        sys.stdout.buffer.write(f"\n{lane.name}:\n".encode() + lane.output.read())
        sys.stdout.flush()
    return 0 if code == NO_TESTS else code


def failures(lane: Lane) -> Iterator[str]:
    """Yield the name of each failed test of a lane, with the end of its output."""
    if not lane.junit.exists():
        yield f"{lane.name}: pytest ended with exit code {lane.process.returncode} and wrote no results"
        return
    for case in ET.parse(lane.junit).iter("testcase"):  # noqa: S314 - pytest wrote it
        for outcome in (*case.iter("failure"), *case.iter("error")):
            text = "\n".join((outcome.text or "").splitlines()[-SHOWN_LINES:])
            yield f"{case.get('classname')}::{case.get('name')} ({outcome.tag})\n{text}"


def compile_packages() -> None:
    """Compile all packages to byte code.

    In a fresh checkout, a dozen first processes would otherwise compile their imports at the same time. A process that
    was to refuse its start then took longer than 30 s.
    """
    for package in ROOT.glob("*/dledger*"):
        compileall.compile_dir(package, quiet=2, workers=0)


def empty(results: Path) -> Path:
    """Remove the files of an earlier run, and return the empty directory."""
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    return results


def main(arguments: Sequence[str]) -> int:
    """Run the requested tests, and return the exit status."""
    began = time.monotonic()
    compile_packages()
    part = arguments[0] if arguments else "test"
    results = empty(ROOT / RESULTS / part)
    if part == "native":
        lanes = Starter(results, ()).native()
    else:
        lanes = Starter(results, ("-m", "long" if part == "long" else "not long")).python()
    try:
        codes = [finish(lane) for lane in reversed(lanes)]
    except KeyboardInterrupt:
        # The terminal has interrupted the lanes too; each lane stops its processes.
        codes = [lane.process.wait() for lane in lanes]
    for lane in lanes:
        if lane.process.returncode not in {0, NO_TESTS}:
            print(*(f"\n{text}" for text in failures(lane)), sep="\n")
    failed = [code for code in codes if code]
    bill = billing.read({lane.name: (lane.costs, lane.junit) for lane in lanes if lane.costs.exists()})
    print(f"\n{bill.report()}")
    if part != "native":
        excess = billing.load_budget(Path(__file__).with_name("budget.toml")).excess(part, bill)
        if excess and not failed:
            print(f"\n{excess}")
            failed = [1]
    if part == "test":
        print(f"\n{bill.left_out()}")
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    print(f"\n{'FAILED' if failed else 'passed'} after {minutes} min {seconds} s")
    return failed[0] if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
