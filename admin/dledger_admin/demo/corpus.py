"""Input of the demonstration: files, one message per line.

A file's name travels as the message key, and RocketMQ separates keys by spaces, so it is percent-encoded: any name of
any file system survives.  A line longer than a message may be travels in several pieces.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

from ..errors import AdminError

MAX_PIECE_BYTES = 1 << 20
"""Maximum size of a piece of a line in bytes. Longer lines are cut; a broker takes messages of up to 4 MiB."""

_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to ship; `key` names it on the way."""

    path: Path
    key: str
    size_bytes: int

    def lines(self) -> Iterator[bytes]:
        """Yield the lines with their ends, over-long ones in pieces; their concatenation is the file."""
        with self.path.open("rb") as file:
            while line := file.readline(MAX_PIECE_BYTES):
                yield line

    def sha256(self) -> str:
        """Return the SHA-256 of the file as it is on disk now."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def standard_library() -> list[SourceFile]:
    """Return every `*.py` of the running Python's standard library; packages installed beside it do not count."""
    root = Path(sysconfig.get_path("stdlib"))
    return _find_files(root, lambda name: name.endswith(".py"))


def directory(root: Path) -> list[SourceFile]:
    """Return every regular file below `root`; raises `AdminError` when there is none."""
    if not root.is_dir():
        raise AdminError(f"--input {root} is no directory: give one whose files shall be shipped")
    files = _find_files(root, lambda _: True)
    if not files:
        raise AdminError(f"--input {root} holds no files: give a directory whose files shall be shipped")
    return files


def key_of(relative: str) -> str:
    """Return the message key of a file name relative to the root."""
    return quote(os.fsencode(relative), safe="/")


def name_of(key: str) -> str:
    """Return the file name that `key_of` made a key of."""
    return os.fsdecode(unquote_to_bytes(key))


def _find_files(root: Path, is_wanted: Callable[[str], bool]) -> list[SourceFile]:
    source_files = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
        for name in sorted(names):
            path = Path(folder, name)
            if is_wanted(name) and path.is_file() and not path.is_symlink():
                source_files.append(SourceFile(path, key_of(str(path.relative_to(root))), path.stat().st_size))
    return source_files
