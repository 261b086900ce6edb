"""Recorded answers of an earlier build in `tests/golden/`, and their comparison with the answers of this build.

A test renders stable output as lines of text and gives them to `compare`. With RECORD_GOLDEN=yes in the environment the
files are written instead. Their difference in git shows the effect of a change on bytes that others read. Lines contain
nothing that differs between machines, runs, hash seeds or versions of Python.
"""

import difflib
import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"
LONGEST_HEX = 400
"""Maximum number of bytes that `bytes_text` shows in full."""
MOST_DIFFERENCES = 60
"""Maximum number of lines of a difference in a failure."""


def compare(
    name: str, lines: Iterable[str], *, folder: Path = GOLDEN, kept: Callable[[str], str] | None = None
) -> None:
    """Fail with the difference unless `lines` equal the content of `folder`/`name`.txt.

    With RECORD_GOLDEN=yes, write the file instead. A line must not contain a line break. `kept(line)` is the part of a
    line that must stay the same, by default all of it.
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
    """Return the content of a recorded file, or fail if there is none."""
    if not path.exists():
        pytest.fail(f"{path.name} was not recorded: make golden RECORD=yes does that", pytrace=False)
    return path.read_bytes()


def bytes_text(data: bytes | bytearray | memoryview) -> str:
    """Return bytes as one word: hexadecimal up to `LONGEST_HEX` bytes, or else length and SHA-256."""
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
