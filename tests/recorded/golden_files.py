"""Recorded answers of an earlier build in `tests/golden/`, and the comparison with what this build says.

A test renders what it holds still as lines of text and gives them to `compare`. With RECORD_GOLDEN=yes in the
environment the files are written instead; their difference in git says what a change did to bytes that others read.
Lines hold nothing that differs between machines, runs, hash seeds or versions of Python.
"""

import difflib
import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"
LONGEST_HEX = 400
"""Bytes up to which `bytes_text` shows them all."""
MOST_DIFFERENCES = 60
"""Lines of a difference that a failure shows."""


def compare(
    name: str, lines: Iterable[str], *, folder: Path = GOLDEN, kept: Callable[[str], str] | None = None
) -> None:
    """Fail with the difference unless `lines` are what `folder`/`name`.txt holds; with RECORD_GOLDEN=yes, write it.

    A line has no end of its own. `kept(line)` is what of a line has to stay as it was; by default all of it.
    """
    found = list(lines)
    for line in found:
        assert "\n" not in line, f"a line of {name} has an end of its own: {line!r}"
    path = folder / f"{name}.txt"
    if os.environ.get("RECORD_GOLDEN") == "yes":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in found), encoding="utf-8", newline="\n")
        return
    recorded = recorded_bytes(path).decode().split("\n")
    assert recorded.pop() == "", f"{path.name} does not end with a line's end"
    if kept is not None:
        recorded, found = [kept(line) for line in recorded], [kept(line) for line in found]
    if found != recorded:
        pytest.fail(_difference(path.name, recorded, found), pytrace=False)


def recorded_bytes(path: Path) -> bytes:
    """What a recorded file holds; fails where there is none."""
    if not path.exists():
        pytest.fail(f"{path.name} was not recorded: make golden RECORD=yes does that", pytrace=False)
    return path.read_bytes()


def bytes_text(data: bytes | bytearray | memoryview) -> str:
    """Bytes as one word: hexadecimal, or length and SHA-256 of what is longer than `LONGEST_HEX` bytes."""
    if len(data) <= LONGEST_HEX:
        return bytes(data).hex() or "-"
    return f"{len(data)}:sha256:{hashlib.sha256(data).hexdigest()}"


def _difference(name: str, recorded: list[str], found: list[str]) -> str:
    lines = list(difflib.unified_diff(recorded, found, f"recorded {name}", "this build", lineterm="", n=1))
    shown = [
        line if len(line) <= 300 else f"{line[:300]}... ({len(line)} characters)" for line in lines[:MOST_DIFFERENCES]
    ]
    if len(lines) > MOST_DIFFERENCES:
        shown.append(f"... and {len(lines) - MOST_DIFFERENCES} lines more")
    return "\n".join((f"{name} is not what was recorded", *shown))
