"""The control file of one node's disk and clock. The rig writes it, and the shim in the running node reads it.

Layout (little-endian, 4096 bytes), in this order:

- u32 generation of the rules, which changes after them; u32 unused;
- i64 offset of the wall clock in ns, i64 its drift in ppm, i64 the real time in ns at which the drift began;
- rules as text, up to a NUL.
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
"""Names directly below a node's directory that the shim does not watch. They are no data, and survive a power loss."""

_FILE_BYTES: Final = 4096
_CLOCK: Final = struct.Struct("<qqq")
_CLOCK_OFFSET: Final = 8
_RULES_OFFSET: Final = 32
_GENERATION: Final = struct.Struct("<I")
_MAX_RULES: Final = 32
_NO_ROOM_PERMILLE: Final = 990
"""Used part of a file system from which on a node may find too little room to start."""

Call = Literal["read", "write", "extend", "allocate", "create", "truncate", "sync", "rename", "open", "space"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Effect on a kind of call on files whose path contains `part`: it fails with `error`, or takes `delay_ms` longer.

    - `extend` is a write beyond the end of a file, `allocate` a reservation of space beyond it.
    - `create` is the creation of a file or directory.
    - `open` fails while `most_open` files of the node are open.
    - `space` makes `statvfs` report that `used_permille` of the file system are used.
    """

    call: Call
    error: int = 0
    delay_ms: int = 0
    part: str = ""
    most_open: int = 0
    used_permille: int = 0

    @property
    def refusal(self) -> int:
        """Error number that calls of a node, or a node's own look at its disk, meet under this rule; 0 for none."""
        return errno.ENOSPC if self.used_permille >= _NO_ROOM_PERMILLE else self.error

    def line(self) -> str:
        """Return the rule in the format that the shim reads."""
        if self.call == "open":
            action = f"limit {self.most_open}"
        elif self.call == "space":
            action = f"used {self.used_permille}"
        else:
            action = f"error {self.error}" if self.error else f"delay {self.delay_ms}"
        return f"{self.call} {action} {self.part}".rstrip()


FULL_DISK: Final = (
    Rule("allocate", errno.ENOSPC),
    Rule("extend", errno.ENOSPC),
    Rule("create", errno.ENOSPC),
)
"""Calls that a full disk refuses. Bytes whose space is allocated can be written."""


def shim_environment(library: Path, root: Path, state: Path) -> dict[str, str]:
    """Return the variables that preload the shim into every node below `root`. Its files are in `state`."""
    return {
        "LD_PRELOAD": str(library),
        "SHIM_ROOT": str(root),
        "SHIM_STATE": str(state),
        "SHIM_IGNORE": ":".join(IGNORED_NAMES),
    }


class DiskControl:
    """One node's rules and clock. Each rule has a holder, so that faults may overlap and heal one by one.

    It can be used before the node's first start, and from several threads.
    """

    def __init__(self, state: Path) -> None:
        self.directory = state
        self._rules_by_holder: dict[Hashable, tuple[Rule, ...]] = {}
        self._lock = Lock()
        state.mkdir(parents=True, exist_ok=True)
        with (state / "control").open("a+b") as file:
            file.truncate(_FILE_BYTES)
            self._map = mmap.mmap(file.fileno(), _FILE_BYTES)

    def require_shim(self) -> None:
        """Raise `TargetError` unless the shim has been loaded into a process of this node.

        The system does not fail if it cannot preload a library: it prints a line to stderr at most.
        """
        if not (self.directory / "undo").is_dir():
            raise TargetError(
                f"{self.directory.name} runs without the disk shim: faults of disks, power and clocks would do nothing"
            )

    def hold(self, holder: Hashable, rules: Iterable[Rule]) -> None:
        """Apply rules until `release(holder)`; the rules of other holders stay."""
        with self._lock:
            self._write_rules({**self._rules_by_holder, holder: tuple(rules)})

    def release(self, holder: Hashable) -> None:
        """Drop the rules of one holder."""
        with self._lock:
            self._write_rules({other: rules for other, rules in self._rules_by_holder.items() if other != holder})

    def release_all(self) -> None:
        """Drop all rules and set the clock right."""
        with self._lock:
            self._write_rules({})
        self.set_clock()

    def set_clock(self, offset_s: float = 0.0, drift_ppm: int = 0) -> None:
        """Set the offset of the node's wall clock from the real time, in seconds, and its drift from now on."""
        _CLOCK.pack_into(self._map, _CLOCK_OFFSET, round(offset_s * 1e9), drift_ppm, time.time_ns())

    def close(self) -> None:
        """Close the file. Its rules stay in force."""
        self._map.close()

    def _write_rules(self, rules_by_holder: Mapping[Hashable, tuple[Rule, ...]]) -> None:
        lines = [rule.line() for rules in rules_by_holder.values() for rule in rules]
        text = "".join(f"{line}\n" for line in lines).encode()
        room = _FILE_BYTES - _RULES_OFFSET
        if len(lines) > _MAX_RULES or len(text) >= room:
            raise ChaosError(
                f"{len(lines)} disk rules at the same time, {_MAX_RULES} fit: use fewer disk faults at once"
            )
        self._rules_by_holder = dict(rules_by_holder)
        self._map[_RULES_OFFSET:] = text.ljust(room, b"\0")
        (generation,) = _GENERATION.unpack_from(self._map, 0)
        _GENERATION.pack_into(self._map, 0, (generation + 1) & 0xFFFFFFFF)
