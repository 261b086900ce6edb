"""Files of a cluster's directory, which survive a power loss whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dledger_base.room import FULL

from ..errors import AdminError


@contextmanager
def being_written(path: Path) -> Iterator[None]:
    """Name `path` in what the system refuses inside: an `AdminError` that says what to do if its disk is full, else an
    `OSError`.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise AdminError(
                f"{path} cannot be written, its disk is full ({error.strerror}): make room there, then run this again"
            ) from error
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_durably(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace `path` by `data`: temporary file, fsync, rename, fsync of the directory.

    A file that has this content already is left as it is, so that a full disk is no obstacle. Raises as
    `being_written`.
    """
    with being_written(path):
        if _has_content(path, data, mode):
            sync_directory(path.parent)  # its writer may have been stopped before that
            return
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, mode)
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            temporary.rename(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        sync_directory(path.parent)


def _has_content(path: Path, data: bytes, mode: int) -> bool:
    """Return True if a file holds these bytes. They are durable, because the file was named only after its fsync."""
    try:
        return stat.S_IMODE(path.stat().st_mode) == mode and path.read_bytes() == data
    except FileNotFoundError:
        return False


def make_directory(path: Path, *, parents: bool = False) -> None:
    """Make a directory unless it is there. Raises as `being_written`."""
    with being_written(path):
        path.mkdir(parents=parents, exist_ok=True)


def sync_directory(path: Path) -> None:
    """Make creations, renames and removals in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
