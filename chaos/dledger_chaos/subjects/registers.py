"""The state machine under test: a map of registers and logs. All subjects use it.

A command is one line of JSON: `{"op": "write" | "cas" | "append", "key": …, "value": …}`. Its result depends only on
the commands before it.
"""

from __future__ import annotations

import json
from typing import NamedTuple
from zlib import crc32

WRITES = frozenset(("write", "cas", "append"))
"""Operations that change the state."""

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class Result(NamedTuple):
    """Result of a command. `ok` is False if it was refused and changed nothing."""

    ok: bool
    value: Json = None


class RegisterMap:
    """Registers and logs by key; a key that was appended to is a log from then on."""

    def __init__(self) -> None:
        self._registers: dict[str, Json] = {}
        self._logs: dict[str, list[Json]] = {}
        self._history = 0
        """Digest of every command applied, in order."""

    @property
    def digest(self) -> int:
        """Digest of all applied commands, in order."""
        return self._history

    def read(self, key: str) -> Json:
        """Return a log's values in order, a register's value, or None for a key that was never written."""
        log = self._logs.get(key)
        return self._registers.get(key) if log is None else list(log)

    def apply(self, command: bytes) -> Result:
        """Apply one command, and return its result.

        For `write` it is None. For `cas`, whose value is `[expected, new]`, it is True if `expected` was replaced. For
        `append` it is the value's index in its log, from 0.
        """
        self._history = crc32(command, self._history)
        operation = json.loads(command)
        key, value = operation["key"], operation["value"]
        if operation["op"] == "append":
            log = self._logs.setdefault(key, [])
            log.append(value)
            return Result(ok=True, value=len(log) - 1)
        if key in self._logs:
            return Result(ok=False, value="this key is a log")
        if operation["op"] == "cas":
            expected, new = value
            if self._registers.get(key) != expected:
                return Result(ok=True, value=False)
            self._registers[key] = new
            return Result(ok=True, value=True)
        self._registers[key] = value
        return Result(ok=True)

    def dump(self) -> dict[str, Json]:
        """Return the whole state, to be compared between nodes."""
        logs: dict[str, Json] = {key: list(log) for key, log in self._logs.items()}
        return {"registers": dict(self._registers), "logs": logs, "history": self._history}

    def load(self, state: dict[str, Json]) -> None:
        """Replace the whole state by one that `dump` returned. Raises `TypeError` for anything else."""
        registers, logs, history = state["registers"], state["logs"], state["history"]
        if not (isinstance(registers, dict) and isinstance(logs, dict) and isinstance(history, int)):
            raise TypeError(f"a dump of registers, logs and history was expected, not {state!r:.100}")
        self._registers = dict(registers)
        self._logs = {key: list(log) for key, log in logs.items() if isinstance(log, list)}
        self._history = history


def encode_command(operation: str, key: str, value: Json) -> bytes:
    """Return a command for `RegisterMap.apply`: one line, with its line end."""
    return json.dumps({"op": operation, "key": key, "value": value}, separators=(",", ":")).encode() + b"\n"
