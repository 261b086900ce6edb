"""Native part: the choice between it and its twin in Python, made once in each process.

`dledger_native` is a package of its own (`native/`, `make native`). A node uses it if it is installed and was built for
this version. The environment variable `DLEDGER_NATIVE` overrides that: with `0` nothing native is used, with `1` a node
does not start without it. Native code has the same results as its twin, to the byte. Only the time differs.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final, Protocol, TypeAlias, cast

from dledger_base.errors import ConfigError

_logger = logging.getLogger(__name__)

VARIABLE: Final = "DLEDGER_NATIVE"
INTERFACE: Final = 11
"""Number of the interface used here. The native part reports the number that it offers."""
SOURCES: Final = "dledger_native sources eec05aef"
"""Checksum of the sources in `native/`, written by `make fix`. The native part reports its own."""
NONE: Final = "none"
"""Text in place of the version if Python does everything."""


class SyncThread(Protocol):
    """Thread that syncs files without the interpreter; one sync at a time."""

    def fileno(self) -> int:
        """Return the descriptor that is readable while an outcome can be taken."""

    def submit(self, descriptors: list[int]) -> None:
        """Begin to sync. The descriptors must stay open until the outcome is taken.

        Raises RuntimeError while an outcome is awaited, and after `close`.
        """

    def take(self) -> int | None:
        """Return the errno of the sync that ended, 0 if it succeeded; None if none has ended since the last call."""

    def close(self) -> None:
        """Wait for the submitted sync, and end the thread. The outcome can still be taken. Blocks."""


class SendRun(Protocol):
    """Ordinary sends of a turn, which go into the log as one unit; see `native/src/sends.rs`."""

    count: int
    messages: int
    size: int

    def take(
        self,
        reads: Sequence[Any],
        number: int,
        place: int,
        received: float,
        known: Callable[[str], Any],
        body_bytes: int,
        unit_bytes: int,
    ) -> tuple[int, int, bool]:
        """Take sends, beginning with frame `place` of read `number`.

        Returns read and frame of the first send that is not taken, and whether it does not fit the unit.
        """

    def targets(self) -> list[tuple[Any, int, int]]:
        """Return each result of `known`, with the number of sends that go there, and their bytes."""

    def requests(self) -> list[tuple[Any, int, int, int, bytes, bytes, float]]:
        """Return origin, code, opaque, flag, header, body and time of each send."""

    def encode(
        self, position: int, now_ms: int, store_host: bytes, id_prefix: bytes
    ) -> tuple[bytes, list[tuple[Any, int, bytes]]]:
        """Return the records and, for each queue, its offset after the last and the units. Staged offsets advance."""

    def answers(self) -> tuple[list[tuple[Any, list[bytes]]], list[Any]]:
        """Return the answers for each origin, and the origin of each send that wants none."""


Ask: TypeAlias = tuple[bytes | None, int, int, int, int, int, int, int, frozenset[int] | None]
"""Request of a pull to a queue.

It holds the queue's index units, or the descriptor of their file, with first byte and number of units. Then follow the
states of the stamps before and after these units, and the limits of messages and bytes. The codes of the tags that
match come last (None: all match).
"""
Found: TypeAlias = tuple[int, int, int, int, bytes | None]
"""Result of a pull.

It has the number of units passed and of those chosen, the bytes of their records, the position of the first, and the
records. The records are None if they are not all in the given file of the log.
"""


class NativePart(Protocol):
    """Interface of `dledger_native`.

    A fault in it ends only the call. A call that may return None then does so, and a send counts as not taken. All
    other calls raise `Panicked`.
    """

    INTERFACE: int
    SOURCES: str
    __version__: str
    Panicked: type[Exception]

    def on_panic(self, tell: Callable[[str, str], None]) -> None:
        """Call `tell(function, text)` at the first fault from now on, and not at later ones."""

    def panic_at_next(self, function: str) -> None:
        """Let the next call of a function panic, for tests.

        `send` stands for each send that `SendRun.take` looks at.
        """

    def pread_nowait(self, descriptor: int, size: int, offset: int) -> bytes | None:
        """Return `size` bytes of a file from the page cache; None if they are not all there. Raises OSError."""

    def read_pulls(self, asks: Sequence[Ask], log: tuple[int, int, int], first_position: int) -> list[Found | None]:
        """Return each pull's result from files and page cache; None if it is empty, invalid or not cached.

        `log` is an open file of the log: its descriptor, and the positions at which it begins and ends.
        """

    def scan_runs(self, records: bytes | memoryview, log_position: int) -> list[tuple[bytes, int, int, bytes]] | None:
        """Do the work of `dledger_broker.views.scan.scan_runs`; None for unusual or invalid records."""

    def select_units(
        self,
        units: bytes,
        max_messages: int,
        max_bytes: int,
        codes: frozenset[int] | None,
        first_position: int,
        whole: bool,
    ) -> tuple[int, int, int, int, list[tuple[int, int]]] | None:
        """Do the work of `dledger_broker.views.reading.choose_units`; None for invalid units, and for long filters."""

    def stamp_units(self, runs: Sequence[tuple[bytes, int]]) -> list[bytes] | None:
        """Do the work of `dledger_broker.views.stamps.stamped`; None for data that is not units."""

    def scan_keys(self, data: bytes, spans: Sequence[tuple[int, int]]) -> bytes | None:
        """Return the rows of `dledger_broker.views.keyscan.scan_keys`; None for unusual or invalid records."""

    def SendRun(self) -> SendRun:  # noqa: N802 - a class of the module
        """Make a run without sends."""

    def SyncThread(self) -> SyncThread:  # noqa: N802 - a class of the module
        """Start a thread. Raises OSError if no more threads are possible."""


def load(wanted: str | None) -> NativePart | None:
    """Return the native part, if `wanted` (the value of `DLEDGER_NATIVE`) and the installed package allow that.

    Raises `ConfigError` if `1` demands a native part that is missing, and for other values than 0, 1 and none. It is
    also raised if an unusable package of that name is installed, even if none is demanded.
    """
    if wanted not in {None, "", "0", "1"}:
        raise ConfigError(f"{VARIABLE}={wanted}: expected 0 (Python alone), 1 (the native part is required) or nothing")
    if wanted == "0":
        return None
    try:
        module = importlib.import_module("dledger_native")
    except ModuleNotFoundError as error:
        if wanted == "1":
            raise ConfigError(f"{VARIABLE}=1, and no native part is installed: make native") from error
        return None
    except ImportError as error:
        # For example, the wheel was built for another platform or another Python.
        raise ConfigError(f"the native part cannot be loaded ({error}): make native") from error
    _check_build(module)
    part = cast(NativePart, module)
    part.on_panic(_log_panic)
    return part


def _check_build(module: ModuleType) -> None:
    """Raise `ConfigError` if a module of that name is not this project's, or was built from other sources."""
    location = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "unknown")
    if not hasattr(module, "INTERFACE"):
        raise ConfigError(f"{location} is no native part: remove it, or make native")
    if module.INTERFACE != INTERFACE or module.SOURCES != SOURCES:
        raise ConfigError(
            f"the native part {module.__version__} at {location} was built from other sources: make native"
        )


def _log_panic(function: str, error_text: str) -> None:
    _logger.error(
        "event=native_part_failed function=%s error=%r "
        "consequence='Python does the work, or the outcome of a request is unknown; logged only once'",
        function,
        error_text,
    )


def _try_load(wanted: str | None) -> tuple[NativePart | None, ConfigError | None]:
    try:
        return load(wanted), None
    except ConfigError as error:
        return None, error


_WANTED: Final = os.environ.get(VARIABLE)
_LOADED: Final = _try_load(_WANTED)
PART: Final = _LOADED[0]
"""The native part; None if Python does everything."""
_LOAD_ERROR: Final = _LOADED[1]
"""Reason why an installed or demanded native part cannot be used."""


def require_obeyed() -> None:
    """Raise `ConfigError` if `DLEDGER_NATIVE` cannot be obeyed. Then a node does not start; other processes do."""
    if _LOAD_ERROR is not None and _WANTED:
        raise _LOAD_ERROR


def version() -> str:
    """Return the version of the native part that this process uses, or `none`, with the reason if it cannot be used."""
    if PART is not None:
        return PART.__version__
    return NONE if _LOAD_ERROR is None else f"{NONE} ({_LOAD_ERROR})"
