"""Run all tests, several processes of pytest side by side where that changes nothing of what they find.

* *Virtual time*: tests that live on a simulated clock, or need none, in two processes, the simulator's in one. They get
  what the others leave of the processors, and find the same however little that is.
* *Waiting*: tests most of whose time passes without work: nodes start, faults last for seconds; clients that others
  wrote look the route up every 30 s, and their retries are seconds away.
* The rest of `tests/`, as it is.

With `native`, only what runs on the native part, in two processes: nodes, and requests.

The output of the last is shown as it comes, that of the others when they have ended. What failed in any of them stands
at the end again: whoever keeps only the last lines of a log sees it. Exit code 0 only if all passed.
"""

from __future__ import annotations

import compileall
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
VIRTUAL_TIME = (
    "tests/broker/features",
    "tests/broker/kernel",
    "tests/broker/requests",
    "tests/broker/toy",
    "tests/dledger/store",
    "tests/paper",
    "tests/recorded",
    "tests/remoting",
)
SIMULATOR = "tests/sim"
REAL_TIME = (
    "tests/broker/features/class_filters",
    "tests/broker/features/client_membership",
    "tests/broker/features/ranges",
)
"""Within `VIRTUAL_TIME`, and no part of it: they have real processes and connections."""
WAITING = ("tests/chaos", "tests/conformance", "tests/integration")
"""Each a process of its own."""
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
SHOWN_LINES = 30
"""Lines of a failure's text that stand at the end."""


class Lane(NamedTuple):
    """One process of pytest, where its output goes, and the JUnit file that it writes."""

    name: str
    process: subprocess.Popen[bytes]
    output: IO[bytes] | None
    results: Path


def start(
    results: Path, name: str, arguments: Sequence[str], *, priority: Sequence[str] = (), shown: bool = False
) -> Lane:
    """Start pytest, which writes its results to a file."""
    output = None if shown else tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the lane
    command = [*priority, sys.executable, "-m", "pytest", f"--junitxml={results}", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT if output else None)
    return Lane(name, process, output, results)


def finish(lane: Lane) -> int:
    """Wait for a lane, show what it has printed, and return its exit code."""
    code = lane.process.wait()
    if lane.output is not None:
        lane.output.seek(0)
        sys.stdout.flush()
        sys.stdout.buffer.write(f"\n{lane.name}:\n".encode() + lane.output.read())
        sys.stdout.flush()
    return code


def failures(lane: Lane) -> Iterator[str]:
    """Name each test of a lane that failed, with the end of its text."""
    if not lane.results.exists():
        yield f"{lane.name}: pytest ended with exit code {lane.process.returncode} and wrote no results"
        return
    for case in ET.parse(lane.results).iter("testcase"):  # noqa: S314 - pytest wrote it
        for outcome in (*case.iter("failure"), *case.iter("error")):
            text = "\n".join((outcome.text or "").splitlines()[-SHOWN_LINES:])
            yield f"{case.get('classname')}::{case.get('name')} ({outcome.tag})\n{text}"


def start_all(results: Path) -> list[Lane]:
    """Start every lane."""
    return [
        *(start(results / f"{n}.xml", f"{path}, which wait", [path]) for n, path in enumerate(WAITING)),
        start(results / "simulator.xml", "tests of the simulator", [SIMULATOR], priority=LOW_PRIORITY),
        start(
            results / "virtual.xml",
            "tests in virtual time",
            [*VIRTUAL_TIME, *(f"--ignore={path}" for path in REAL_TIME)],
            priority=LOW_PRIORITY,
        ),
        start(results / "real.xml", "tests of features in real time", REAL_TIME),
        start(
            results / "other.xml",
            "all other tests",
            [f"--ignore={path}" for path in (*WAITING, *VIRTUAL_TIME, SIMULATOR)],
            shown=True,
        ),
    ]


def start_native(results: Path) -> list[Lane]:
    """Start what runs on the native part."""
    requests = ["-p", "tests.native.on_native", *REQUESTS_ON_NATIVE]
    return [
        start(results / "requests.xml", "requests on the native part", requests),
        start(results / "nodes.xml", "nodes on the native part", ON_NATIVE, shown=True),
    ]


def compile_packages() -> None:
    """Write the byte code of all packages.

    In a fresh checkout each of the first processes would compile what it imports, a dozen at once: one that was to
    refuse to start did not come to it within 30 s.
    """
    for package in ROOT.glob("*/dledger*"):
        compileall.compile_dir(package, quiet=2, workers=0)


def main(arguments: Sequence[str]) -> int:
    """Run everything, or what runs on the native part, and return the exit status."""
    began = time.monotonic()
    compile_packages()
    with tempfile.TemporaryDirectory(prefix="dledger-tests-") as results:
        lanes = (start_native if arguments == ["native"] else start_all)(Path(results))
        try:
            codes = [finish(lane) for lane in reversed(lanes)]
        except KeyboardInterrupt:
            # The terminal has told them too; each stops its processes.
            codes = [lane.process.wait() for lane in lanes]
        for lane in lanes:
            if lane.process.returncode:
                print(*(f"\n{text}" for text in failures(lane)), sep="\n")
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    failed = [code for code in codes if code]
    print(f"\n{'FAILED' if failed else 'passed'} after {minutes} min {seconds} s")
    return failed[0] if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
