"""Write the tables of docs/promises.md and the page docs/proof/slips.md from the table of promises, or check them.

`.ci/promises.py --write` writes both pages, and follows a function that has moved to another module. Without `--write`
nothing is written, and these are findings, one line each:

- a page that differs from the table in `docs/promises/`
- a clause whose words are not in its row, or whose check is not there or not named by the row
- a slip that does not apply to this tree
- a known bug without a promise, or a promise that no row has

The exit code is 1 if there is any finding.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from anchors import AnchorError, MovedError, change_of
from promise_table import FOLDER, MUTANTS, Clause, Promise, Table, TableError, read

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/promises.md")
SLIPS = Path("docs/proof/slips.md")
REAL_PROCESSES = "chaos"
"""Section whose promises have a check of the chaos rig."""
COUNTS = "counts"
_GENERATED = re.compile(r"(?<=<!-- promises: )([^>]+)( -->\n).*?(?=<!-- end of promises -->)", re.DOTALL)
SLIPS_HEAD = """# Slips and known bugs, by promise

`make fix` writes this page from the table in `docs/promises/`. A *clause* is some words of a
[promise](../promises.md), with the one check that fails without them. A *slip* is a change of a few lines in the
product that breaks the clause. `make slips` puts each slip into a copy of the tree, and runs only the check of its
clause. That check must fail with the assertion that the table names.

Known bugs are the mutants of the [simulator](simulator.md#known-bugs), the [explorer](explorer.md), the pipeline, the
client library and the [chaos rig](known-bugs.md). `make slips` runs them as well, but those of the chaos rig only by
name.
[Contributing](../../CONTRIBUTING.md#a-promise-and-its-slips) tells how to add a clause and a slip.

"""


# ---------------------------------------------------------------- the pages


def generated(table: Table) -> dict[str, str]:
    """Return each generated part of the page of promises by its name."""
    return {COUNTS: _counts(table)} | {name: _rows(name, rows) for name, rows in table.sections.items()}


def page(text: str, parts: Mapping[str, str]) -> str:
    """Return the page of promises with the generated parts in it."""
    return _GENERATED.sub(lambda match: f"{match[1]}{match[2]}\n{parts.get(match[1], '')}\n", text)


def slips_page(table: Table) -> str:
    """Return the page about slips."""
    lines = [SLIPS_HEAD + _counts(table), "## Clauses", ""]
    lines += ["| promise | clause | for | check | slips |", "|---|---|---|---|---|"]
    for promise in table.promises():
        for clause in promise.clauses:
            words = "; ".join(filter(None, (" … ".join(clause.what), " … ".join(clause.under), clause.bound)))
            slips = "<br>".join(f"`{slip.name}`: {slip.hurts}" for slip in clause.slips) or "none yet"
            lines.append(f"| `{promise.name}` | {_without_links(words)} | {clause.whom} | `{clause.check}` | {slips} |")
    lines += ["", "## Known bugs", "", "| promise | known bugs |", "|---|---|"]
    for promise in table.promises():
        bugs: dict[str, list[str]] = {}
        for runner, name in table.mutants_of(promise.name):
            bugs.setdefault(runner, []).append(f"`{name}`")
        if bugs:
            told = "<br>".join(f"{runner}: {', '.join(names)}" for runner, names in bugs.items())
            lines.append(f"| `{promise.name}` | {told} |")
    return "\n".join(lines) + "\n"


def _rows(section: str, promises: tuple[Promise, ...]) -> str:
    if section == REAL_PROCESSES:
        head = ["| check | promise | under | judges runs with |", "|---|---|---|---|"]
        rows = [f"| `{one.name}` | {one.says} | {one.under} | {one.judges} |" for one in promises]
    else:
        head = ["| promise | under | test |", "|---|---|---|"]
        rows = [f"| {one.says} | {one.under + ' ' if one.under else ''}| {one.held_by} |" for one in promises]
    return "\n".join([*head, *rows]) + "\n"


def _counts(table: Table) -> str:
    promises = list(table.promises())
    clauses = [clause for promise in promises for clause in promise.clauses]
    with_slips = sum(bool(clause.slips) for clause in clauses)
    slips = sum(len(clause.slips) for clause in clauses)
    split, whole = sum(bool(one.clauses) for one in promises), sum(one.is_whole for one in promises)
    bugs = {name for names in table.mutants.values() for name in names}
    only_bugs = sum(not one.clauses and any(table.mutants_of(one.name)) for one in promises)
    return (
        f"The tables have {len(promises)} rows. So far {split} of them are split into {len(clauses)} clauses, of which"
        f" {with_slips} have slips ({slips}).\nEach word of {whole} rows belongs to a clause with a slip."
        f" Promises are also broken by {len(bugs)} known bugs.\nAnother {only_bugs} rows have known bugs, and no clause"
        " yet.\n"
    )


def _without_links(text: str) -> str:
    return re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text)


# ---------------------------------------------------------------- findings


def findings(table: Table) -> Iterator[str]:
    """Yield the findings about the table and the pages."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    parts = generated(table)
    named = [match[1] for match in _GENERATED.finditer(text)]
    for name in sorted({*named, *parts}):
        if named.count(name) != 1 or name not in parts:
            yield f"{PAGE}: `<!-- promises: {name} -->` stands there {named.count(name)} times; parts: {list(parts)}"
    if page(text, parts) != text:
        yield f"{PAGE} is not what {FOLDER} says: write the rows there, and run `make fix`"
    if not (ROOT / SLIPS).is_file() or (ROOT / SLIPS).read_text(encoding="utf-8") != slips_page(table):
        yield f"{SLIPS} is not what {FOLDER} says: run `make fix`"
    yield from _wrong_names(table)
    for promise in table.promises():
        for clause in promise.clauses:
            yield from _wrong_clause(promise, clause)
    for _, _, slip in table.slips():
        try:
            change_of(ROOT, slip)
        except AnchorError as error:
            yield str(error)


def _wrong_names(table: Table) -> Iterator[str]:
    names = Counter(promise.name for promise in table.promises())
    slips = Counter(slip.name for _, _, slip in table.slips())
    yield from (f"{FOLDER}: {count} promises have the name {name}" for name, count in names.items() if count > 1)
    yield from (f"{FOLDER}: {count} slips have the name {name}" for name, count in slips.items() if count > 1)
    for runner, known in catalogues().items():
        listed = table.mutants.get(runner, {})
        yield from (f"{MUTANTS}: [{runner}] lacks {name}: which promise does it break?" for name in known - {*listed})
        yield from (f"{MUTANTS}: [{runner}] has {name}, which is no known bug" for name in {*listed} - known)
        yield from (f"{MUTANTS}: {name} is a slip as well" for name in listed if name in slips)
        for name, promise in listed.items():
            if promise not in names:
                yield f"{MUTANTS}: {name} breaks {promise!r}, which no row of {FOLDER} has for its name"


def _wrong_clause(promise: Promise, clause: Clause) -> Iterator[str]:
    for column, text, spans in (
        ("says", promise.says, clause.what),
        ("under", promise.under, clause.under),
    ):
        yield from (f"promise {promise.name}: {span!r} is not in its `{column}`" for span in spans if span not in text)
    if clause.check.startswith("seed "):
        return
    path, _, function = clause.check.partition("[")[0].partition("::")
    if not (ROOT / path).is_file():
        yield f"promise {promise.name}: there is no {path}: has the check moved?"
    elif function and f"def {function}(" not in (ROOT / path).read_text(encoding="utf-8"):
        yield f"promise {promise.name}: {path} has no {function}: has the check moved?"
    elif promise.held_by and f"`{path}`" not in promise.held_by and f"{path}::{function}`" not in promise.held_by:
        yield f"promise {promise.name}: its `held_by` does not name {clause.check}"


def catalogues() -> dict[str, set[str]]:
    """Return the names of all known bugs by their runner."""
    from dledger_chaos.mutants.clients import CATALOGUE as CLIENT
    from dledger_chaos.mutants.trials import TRIALS
    from dledger_sim.brokers.mutants import MUTANTS as SIMULATOR
    from dledger_sim.spark.mutants import CATALOGUE as PIPELINE

    explorer = (ROOT / "tests/sim/test_explorer.py").read_text(encoding="utf-8")
    explored = {
        name for name in re.findall(r'^        \("([a-z0-9-]+)", ', explorer, re.MULTILINE) if name in SIMULATOR
    }
    return {
        "simulator": {*SIMULATOR},
        "explorer": explored,
        "pipeline": {*PIPELINE},
        "client": {*CLIENT},
        "chaos": {*TRIALS},
    }


# ---------------------------------------------------------------- writing


def follow_moves(table: Table) -> bool:
    """Write the new module of each slip whose function has moved. Return whether there was any."""
    moves = {}
    for _, _, slip in table.slips():
        try:
            change_of(ROOT, slip)
        except MovedError as error:
            moves[slip.where] = error.now
        except AnchorError:
            pass
    for path in sorted((ROOT / FOLDER).glob("*.toml")):
        text = path.read_text(encoding="utf-8")
        changed = text
        for where, now in moves.items():
            changed = changed.replace(f"where = '{where}'", f"where = '{now}'")
        if changed != text:
            path.write_text(changed, encoding="utf-8")
    return bool(moves)


def write(table: Table) -> None:
    """Write both pages."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    (ROOT / PAGE).write_text(page(text, generated(table)), encoding="utf-8")
    (ROOT / SLIPS).write_text(slips_page(table), encoding="utf-8")


def main() -> int:
    """Write or check the pages, print the findings, and return the exit status."""
    try:
        table = read(ROOT)
        if "--write" in sys.argv[1:]:
            if follow_moves(table):
                table = read(ROOT)
            write(table)
        all_findings = list(findings(table))
    except TableError as error:
        all_findings = [str(error)]
    print("\n".join(all_findings) or f"{PAGE}: every row is as its table says, every slip applies")
    return 1 if all_findings else 0


if __name__ == "__main__":
    sys.exit(main())
