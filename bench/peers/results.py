"""Results of a comparison, and their TOML form in `bench/runs`."""

from __future__ import annotations

import json
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

OURS = "ours"


class Figures(msgspec.Struct, kw_only=True):
    """All runs of one row on one service, in order. Times are of requests, or from send to receipt.

    There is the CPU time of all nodes, and the generator's own. Memory is RssAnon of all nodes at the end.
    """

    row: str
    service: str
    messages_per_s: list[float] = []
    p50_ms: list[float] = []
    p99_ms: list[float] = []
    cpu_us_per_message: list[float] = []
    generator_us_per_message: list[float] = []
    memory_mb: list[float] = []
    errors: int = 0


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A service, or one row of it, that could not be measured, with the reason. `row` is empty for all of its rows."""

    service: str
    row: str = ""
    reason: str


class Comparison(msgspec.Struct, kw_only=True):
    """One invocation: services by name with version and settings, and all measured figures."""

    date: datetime
    about: str
    command: str
    machine: dict[str, str | int | float | bool]
    services: dict[str, str]
    figures: list[Figures] = []
    skipped: list[Skipped] = []

    def of(self, row: str, service: str) -> Figures | None:
        """Return the figures of a row, None if there are none."""
        return next((some for some in self.figures if (some.row, some.service) == (row, service)), None)

    def ratio(self, figures: Figures) -> float | None:
        """Return how many times as fast ours is, by medians.

        Returns None where ours was not measured, or the figures are its own.
        """
        ours = self.of(figures.row, OURS)
        if ours is None or figures.service == OURS:
            return None
        return statistics.median(ours.messages_per_s) / statistics.median(figures.messages_per_s)


def encode(comparison: Comparison) -> str:
    """Return TOML that `decode` can read."""
    frame = msgspec.to_builtins(comparison, builtin_types=(datetime,))
    tables = {name: frame.pop(name) for name in ("machine", "services")}
    lists = {name: frame.pop(name) for name in ("figures", "skipped")}
    blocks = ["\n".join(_pairs(frame))]
    blocks += ["\n".join([f"[{name}]", *_pairs(table)]) for name, table in tables.items()]
    blocks += ["\n".join([f"[[{name}]]", *_pairs(table)]) for name, rows in lists.items() for table in rows]
    return "\n\n".join(blocks) + "\n"


def decode(path: Path) -> Comparison:
    """Read a file that `encode` made. Raises `OSError`, `tomllib.TOMLDecodeError` or `msgspec.ValidationError`."""
    return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), type=Comparison)


def _pairs(table: Mapping[str, object]) -> Iterable[str]:
    for key, value in table.items():
        yield f"{key if key.replace('_', '').isalnum() and key.isascii() else json.dumps(key)} = {_value(value)}"


def _value(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(_value(one) for one in value)}]"
    return json.dumps(value, ensure_ascii=False)  # strings, numbers and truth values are written alike in TOML and JSON
