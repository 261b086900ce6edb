"""Faults that can be injected into a simulated disk, and copies of its content."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class DiskFault:
    """Fault that makes operations that `matches` (operation name, path) fail, once or until removed.

    `number` is the error number. With `torn` a failing write writes the first half of what it changes.
    """

    matches: Callable[[str, str], bool]
    number: int = errno.EIO
    once: bool = True
    torn: bool = False


class TornWriteError(OSError):
    """A write failed in its middle."""


@dataclass(frozen=True, slots=True)
class DiskImage:
    """Copy of all files and directories."""

    files: dict[str, bytes]
    directories: frozenset[str]
