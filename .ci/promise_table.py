"""Table of the promises: what holds, which check holds each word of it, and what it was broken by.

It stands in `docs/promises/`, one file for each table of `docs/promises.md`:

| part | is |
|---|---|
| `[[promise]]` | one row of the page |
| `[[promise.clause]]` | some words of the row (`what`, `under`), and the one check that fails without them |
| `[[promise.clause.slip]]` | a change of a few lines in the product that breaks the clause |

`mutants.toml` names the promise that each known bug of the simulator, the explorer, the pipeline, the client library
and the chaos rig breaks.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path("docs/promises")
MUTANTS = FOLDER / "mutants.toml"
_WORD = re.compile(r"[\w'%]+")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


class TableError(Exception):
    """The table is not what it should be. The text names the file and what to write."""


class Slip(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Change of a few lines that breaks a clause.

    `where` is `module:qualified name`, or `module:` for the text of the whole module. `text` stands there once. `fails`
    is the text of the assertion that fails, or of its message. `error` names what is raised.
    """

    name: str
    hurts: str
    where: str
    text: str
    becomes: str
    fails: str
    error: str = "AssertionError"
    runs: int = 1
    """Number of runs, each with a seed of its own. At least eight of ten must catch the slip."""


class Clause(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Words of a promise with the check that fails without them.

    `what` and `under` stand in the row as they are written here. `check` is a test, or `seed SCENARIO NUMBER SECONDS`
    of the simulator. `is_slow` says that the check takes more than a minute of processor time.
    """

    what: tuple[str, ...] = ()
    under: tuple[str, ...] = ()
    whom: str = "every client"
    bound: str = ""
    check: str
    is_slow: bool = msgspec.field(name="slow", default=False)
    slips: tuple[Slip, ...] = msgspec.field(name="slip", default=())


class Promise(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Row of the page. `judges` names the runs of the chaos rig that its check judges."""

    name: str
    says: str
    under: str
    held_by: str = ""
    judges: str = ""
    clauses: tuple[Clause, ...] = msgspec.field(name="clause", default=())

    def uncovered(self) -> list[str]:
        """Return the words of the row that belong to no clause."""
        missing = []
        for text, spans in (
            (self.says, [span for clause in self.clauses for span in clause.what]),
            (self.under, [span for clause in self.clauses for span in clause.under]),
        ):
            rest = _LINK.sub(r"\1", text)
            for span in sorted(spans, key=len, reverse=True):
                rest = rest.replace(_LINK.sub(r"\1", span), " ")
            missing += [word for word in _WORD.findall(rest) if word not in {"and", "or", "the same", "a", "the"}]
        return missing

    @property
    def is_whole(self) -> bool:
        """Return whether every word belongs to a clause, and every clause has a slip."""
        return bool(self.clauses) and not self.uncovered() and all(clause.slips for clause in self.clauses)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    promise: tuple[Promise, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """All promises by section of the page, and the promise that each mutant breaks, by runner and name."""

    sections: Mapping[str, tuple[Promise, ...]]
    mutants: Mapping[str, Mapping[str, str]]

    def promises(self) -> Iterator[Promise]:
        """Yield all promises."""
        for section in self.sections.values():
            yield from section

    def slips(self) -> Iterator[tuple[Promise, Clause, Slip]]:
        """Yield all slips, each with its clause and its promise."""
        for promise in self.promises():
            for clause in promise.clauses:
                for slip in clause.slips:
                    yield promise, clause, slip

    def mutants_of(self, promise: str) -> Iterator[tuple[str, str]]:
        """Yield runner and name of the mutants that break a promise."""
        for runner, names in self.mutants.items():
            for name, broken in names.items():
                if broken == promise:
                    yield runner, name


def read(root: Path) -> Table:
    """Read the table of a checkout. Raises `TableError` if a file does not have the form of a table."""
    sections = {
        path.stem: _decode(path, _File).promise
        for path in sorted((root / FOLDER).glob("*.toml"))
        if path.name != MUTANTS.name
    }
    return Table(sections, _decode(root / MUTANTS, dict[str, dict[str, str]]))


def _decode(path: Path, kind: Any) -> Any:  # noqa: ANN401 - as msgspec has it
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), kind)
    except (msgspec.ValidationError, tomllib.TOMLDecodeError) as error:
        raise TableError(f"{path}: {error}") from error
