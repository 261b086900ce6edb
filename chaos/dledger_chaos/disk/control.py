"""The control file of one node's disk and clock, read by the shim in the node while both run.

Layout (little-endian, 4096 bytes): u32 generation, u32 unused, i64 offset of the wall clock in ns, i64 its drift in
ppm, i64 the real time in ns at which the drift began, rules as text up to a NUL.  The generation changes last.
"""

from __future__ import annotations

import errno
import mmap
import struct
import time
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final, Literal

from ..errors import ChaosError, TargetError

IGNORED_NAMES: Final = ("log", "pid", ".pid.tmp")
"""Directly below a node's directory: not data, and wanted after a power loss."""

_SIZE: Final = 4096
_CLOCK: Final = struct.Struct("<qqq")
_CLOCK_AT: Final = 8
_RULES_AT: Final = 32
_GENERATION: Final = struct.Struct("<I")
_MAX_RULES: Final = 32

Call = Literal["read", "write", "extend", "allocate", "create", "truncate", "sync", "rename"]


@dataclass(frozen=True, slots=True)
class Rule:
    """What happens to a kind of call on files whose path contains `part`: it fails with `error`, or is late.

    `extend` is a write beyond the end of a file, `allocate` a reservation beyond it, `create` the making of a file or
    directory.
    """

    call: Call
    error: int = 0
    delay_ms: int = 0
    part: str = ""

    def line(self) -> str:
        """The rule as the shim reads it."""
        action = f"error {self.error}" if self.error else f"delay {self.delay_ms}"
        return f"{self.call} {action} {self.part}".rstrip()


FULL_DISK: Final = (
    Rule("allocate", errno.ENOSPC),
    Rule("extend", errno.ENOSPC),
    Rule("create", errno.ENOSPC),
)
"""What a full disk refuses; what has its space already can be written."""


def shim_environment(library: Path, root: Path, state: Path) -> dict[str, str]:
    """Return the variables with which every node below `root` gets a shim that keeps its things in `state`."""
    return {
        "LD_PRELOAD": str(library),
        "SHIM_ROOT": str(root),
        "SHIM_STATE": str(state),
        "SHIM_IGNORE": ":".join(IGNORED_NAMES),
    }


class DiskControl:
    """One node's rules and clock.  Rules are held in somebody's name, so that faults overlap and heal one by one.

    Usable before the node has ever run, and from several threads.
    """

    def __init__(self, state: Path) -> None:
        self.directory = state
        self._held: dict[Hashable, tuple[Rule, ...]] = {}
        self._lock = Lock()
        state.mkdir(parents=True, exist_ok=True)
        with (state / "control").open("a+b") as file:
            file.truncate(_SIZE)
            self._map = mmap.mmap(file.fileno(), _SIZE)

    def require_shim(self) -> None:
        """Raise `TargetError` unless the shim has been at work in a process of this node.

        Whatever keeps a library from being preloaded says so at most on stderr, and all faults would do nothing.
        """
        if not (self.directory / "undo").is_dir():
            raise TargetError(
                f"{self.directory.name} runs without the disk shim: faults of disks, power and clocks would do nothing"
            )

    def hold(self, holder: Hashable, rules: Iterable[Rule]) -> None:
        """Apply rules until `release(holder)`; those of others go on."""
        with self._lock:
            self._write({**self._held, holder: tuple(rules)})

    def release(self, holder: Hashable) -> None:
        """Drop the rules of one holder."""
        with self._lock:
            self._write({other: rules for other, rules in self._held.items() if other != holder})

    def release_all(self) -> None:
        """Drop all rules and set the clock right."""
        with self._lock:
            self._write({})
        self.set_clock()

    def set_clock(self, offset_s: float = 0.0, drift_ppm: int = 0) -> None:
        """Move the node's wall clock by `offset_s` seconds, and let it go wrong by `drift_ppm` from now on."""
        _CLOCK.pack_into(self._map, _CLOCK_AT, round(offset_s * 1e9), drift_ppm, time.time_ns())

    def close(self) -> None:
        """Let go of the file; what stands in it goes on."""
        self._map.close()

    def _write(self, held: Mapping[Hashable, tuple[Rule, ...]]) -> None:
        lines = [rule.line() for rules in held.values() for rule in rules]
        text = "".join(f"{line}\n" for line in lines).encode()
        room = _SIZE - _RULES_AT
        if len(lines) > _MAX_RULES or len(text) >= room:
            raise ChaosError(
                f"{len(lines)} disk rules at the same time, {_MAX_RULES} fit: use fewer disk faults at once"
            )
        self._held = dict(held)
        self._map[_RULES_AT:] = text.ljust(room, b"\0")
        (generation,) = _GENERATION.unpack_from(self._map, 0)
        _GENERATION.pack_into(self._map, 0, (generation + 1) & 0xFFFFFFFF)
