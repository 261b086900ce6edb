"""Run all tests, several processes of pytest side by side where that changes nothing of what they find.

* *Virtual time*: tests that live on a simulated clock, or need none. They get what the others leave of the processors,
  and find the same however little that is.
* *Waiting*: tests most of whose time passes without work: faults last for seconds; clients that others wrote look the
  route up every 30 s, and their retries are seconds away.
* The rest of `tests/`, as it is.

The output of the last is shown as it comes, that of the others when they have ended. Exit code 0 only if all passed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
VIRTUAL_TIME = (
    "tests/broker/features/group_settings",
    "tests/broker/features/groups",
    "tests/broker/features/offsets",
    "tests/broker/features/pins",
    "tests/broker/features/pulling",
    "tests/broker/features/queries",
    "tests/broker/features/retention",
    "tests/broker/features/runtime",
    "tests/broker/features/sending",
    "tests/broker/features/topics",
    "tests/broker/kernel",
    "tests/broker/requests",
    "tests/broker/toy",
    "tests/dledger/store",
    "tests/paper",
    "tests/recorded",
    "tests/remoting",
    "tests/sim",
)
WAITING = ("tests/chaos", "tests/conformance")
"""Each a process of its own."""
LOW_PRIORITY = ("nice", "-n", "15")


class Lane(NamedTuple):
    """One process of pytest, and where its output goes."""

    name: str
    process: subprocess.Popen[bytes]
    output: IO[bytes] | None


def start(name: str, arguments: Sequence[str], *, priority: Sequence[str] = (), shown: bool = False) -> Lane:
    """Start pytest."""
    output = None if shown else tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the lane
    command = [*priority, sys.executable, "-m", "pytest", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT if output else None)
    return Lane(name, process, output)


def finish(lane: Lane) -> int:
    """Wait for a lane, show what it has printed, and return its exit code."""
    code = lane.process.wait()
    if lane.output is not None:
        lane.output.seek(0)
        sys.stdout.flush()
        sys.stdout.buffer.write(f"\n{lane.name}:\n".encode() + lane.output.read())
        sys.stdout.flush()
    return code


def main() -> int:
    """Run everything and return the exit status."""
    began = time.monotonic()
    lanes = [
        *(start(f"{path}, which wait", [path]) for path in WAITING),
        start("tests in virtual time", VIRTUAL_TIME, priority=LOW_PRIORITY),
        start("all other tests", [f"--ignore={path}" for path in (*WAITING, *VIRTUAL_TIME)], shown=True),
    ]
    try:
        codes = [finish(lane) for lane in reversed(lanes)]
    except KeyboardInterrupt:
        # The terminal has told them too; each stops its processes.
        codes = [lane.process.wait() for lane in lanes]
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    failed = [code for code in codes if code]
    print(f"\n{'FAILED' if failed else 'passed'} after {minutes} min {seconds} s")
    return failed[0] if failed else 0


if __name__ == "__main__":
    sys.exit(main())
