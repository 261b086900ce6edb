"""The choice between the native part and its twin in Python, made once in each process.

`dledger_native` is a package of its own (`native/`, `make native`), which a node takes if it is installed and was built
for this version. The environment variable `DLEDGER_NATIVE` says otherwise: with `0` nothing native is used, with `1` a
node without it does not start. What is native does what its twin does, to the byte; only the time differs.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias, cast

from dledger.errors import ConfigError

_logger = logging.getLogger(__name__)

VARIABLE: Final = "DLEDGER_NATIVE"
INTERFACE: Final = 10
"""Number of what is called here; the native part tells the one that it offers."""
NONE: Final = "none"
"""What stands for the version where Python does everything."""
PASSED_OVER: Final = "none (the one that is installed is of another version: make native)"
"""The same, where nobody has asked for Python alone."""


class SyncThread(Protocol):
    """A thread that syncs files without the interpreter; one sync at a time."""

    def fileno(self) -> int:
        """The descriptor that is readable while an outcome waits to be taken."""

    def submit(self, descriptors: list[int]) -> None:
        """Begin to sync; the descriptors stay open until the outcome is taken.

        Raises RuntimeError while one is awaited, and after `close`.
        """

    def take(self) -> int | None:
        """The errno of the sync that ended, 0 if it succeeded; None if none has ended since the last call."""

    def close(self) -> None:
        """Wait for what was submitted, and end the thread; the outcome can still be taken. Blocks."""


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
        """Take sends from a frame on; where the first is that was not taken, and whether there is no room for it."""

    def targets(self) -> list[tuple[Any, int, int]]:
        """What `known` gave, each with how many sends, of how many bytes, go there."""

    def requests(self) -> list[tuple[Any, int, int, int, bytes, bytes, float]]:
        """Origin, code, opaque, flag, header, body and time of each send."""

    def encode(
        self, position: int, now_ms: int, store_host: bytes, id_prefix: bytes
    ) -> tuple[bytes, list[tuple[Any, int, bytes]]]:
        """The records, and for each queue its offset after the last and the units; staged offsets go on."""

    def answers(self) -> tuple[list[tuple[Any, list[bytes]]], list[Any]]:
        """The answers of each origin, and the origin of each send that wants none."""


Ask: TypeAlias = tuple[bytes | None, int, int, int, int, int, frozenset[int] | None]
"""What a pull asks of a queue: its units, or the descriptor, first byte and number of those in a file; how many
messages and bytes it may get; the codes of the tags that match, None where all do."""
Found: TypeAlias = tuple[int, int, int, int, bytes | None]
"""How many units were passed, how many of them chosen, the bytes of their records, the position of the first, and the
records: None if they are not all in the file of the log that was given."""


class NativePart(Protocol):
    """What `dledger_native` offers.

    A fault of it ends a call and nothing else: what may answer None does, a send is one that it does not take, and
    everything else raises `Panicked`.
    """

    INTERFACE: int
    __version__: str
    Panicked: type[Exception]

    def on_panic(self, tell: Callable[[str, str], None]) -> None:
        """Call `tell(function, what was said)` at the first fault from now on, and not at later ones."""

    def panic_at_next(self, function: str) -> None:
        """For tests: the next call of a function panics; `send` is each send that `SendRun.take` looks at."""

    def pread_nowait(self, descriptor: int, size: int, offset: int) -> bytes | None:
        """`size` bytes of a file out of the page cache; None if it has not got them all. Raises OSError."""

    def read_pulls(self, asks: Sequence[Ask], log: tuple[int, int, int], first_position: int) -> list[Found | None]:
        """For each pull what it gets out of files and page cache; None if that is nothing, not sound, or not there.

        `log` is an open file of the log: descriptor, and the positions at which it begins and ends.
        """

    def scan_runs(self, records: bytes | memoryview, log_position: int) -> list[tuple[bytes, int, int, bytes]] | None:
        """`dledger_broker.views.scan.scan_runs`; None of records that are unusual or not sound."""

    def select_units(
        self,
        units: bytes,
        max_messages: int,
        max_bytes: int,
        codes: frozenset[int] | None,
        first_position: int,
        whole: bool,
    ) -> tuple[int, int, int, int, list[tuple[int, int]]] | None:
        """`dledger_broker.views.reading.choose_units`; None of units that are not sound, and of long filters."""

    def scan_keys(self, data: bytes, spans: Sequence[tuple[int, int]]) -> bytes | None:
        """The rows of `dledger_broker.views.keyscan.scan_keys`; None of records that are unusual or not sound."""

    def SendRun(self) -> SendRun:  # noqa: N802 - a class of the module
        """One without sends."""

    def SyncThread(self) -> SyncThread:  # noqa: N802 - a class of the module
        """Start a thread. OSError if there can be no more."""


def load(wanted: str | None) -> NativePart | None:
    """The native part, if `wanted`, the value of `DLEDGER_NATIVE`, and what is installed allow that.

    Raises `ConfigError` where `1` demands it in vain, and for another value than 0 and 1.
    """
    if wanted not in {None, "", "0", "1"}:
        raise ConfigError(f"{VARIABLE}={wanted}: expected 0 (Python alone), 1 (not without the native part) or nothing")
    if wanted == "0":
        return None
    try:
        part = cast(NativePart, importlib.import_module("dledger_native"))
    except ImportError as error:
        if wanted == "1":
            raise ConfigError(f"{VARIABLE}=1, and the native part cannot be loaded ({error}): make native") from error
        return None
    if part.INTERFACE != INTERFACE:
        if wanted == "1":
            raise ConfigError(
                f"{VARIABLE}=1, and the native part {part.__version__} is of another version: make native"
            )
        return None
    part.on_panic(_tell_of_panic)
    return part


def _tell_of_panic(function: str, said: str) -> None:
    _logger.error(
        "event=native_part_failed function=%s error=%r "
        "consequence='Python does it, or who waits is told that the outcome is unknown; told once'",
        function,
        said,
    )


def _load_or_not() -> tuple[NativePart | None, ConfigError | None]:
    try:
        return load(os.environ.get(VARIABLE)), None
    except ConfigError as error:
        return None, error


_LOADED: Final = _load_or_not()
PART: Final = _LOADED[0]
"""The native part, None where Python does everything."""


def require_obeyed() -> None:
    """Raise `ConfigError` where `DLEDGER_NATIVE` cannot be obeyed: a node does not start then, others do."""
    if _LOADED[1] is not None:
        raise _LOADED[1]


def version() -> str:
    """The version of the native part that this process uses, or `none`, with the reason if there would be one."""
    if PART is not None:
        return PART.__version__
    wanted = os.environ.get(VARIABLE) != "0"
    return PASSED_OVER if wanted and importlib.util.find_spec("dledger_native") is not None else NONE
