"""`dledger log`: look at logs offline, without any node."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import msgspec

from dledger.errors import LogError
from dledger.store.identity import LOCK_NAME
from dledger.store.verify import Comparison, VerifyReport, compare, inspect, verify
from dledger.types import EntryKind, EntryMeta

from ..errors import AdminError
from ..help import HelpGroup
from ..output import columns, emit, output_option


class Verification(msgspec.Struct, frozen=True):
    """Result of `log verify`; `comparison` is there when several directories were given."""

    ok: bool
    logs: list[VerifyReport]
    comparison: Comparison | None


class EntryLine(msgspec.Struct, frozen=True):
    """One entry as `log inspect` shows it; sizes and positions are bytes."""

    index: int
    term: int
    kind: str
    position: int
    size: int
    command_bytes: int
    chain_crc: int


NODE_DIRECTORY: Final = click.Path(path_type=Path, file_okay=False)


@click.group(cls=HelpGroup)
def log() -> None:
    """Check and show logs of stopped nodes, or copies of them; nothing is changed."""


@log.command("verify")
@click.argument("directories", metavar="DIR/NODE-ID...", nargs=-1, required=True, type=NODE_DIRECTORY)
@output_option
@click.pass_context
def verify_command(context: click.Context, directories: tuple[Path, ...], output: str) -> None:
    """Check every byte of a node's log; with several directories, also that their committed bytes are equal.

    Exit code 1 when something does not verify, or differs.
    """
    result = verify_logs(directories)
    emit(result, output, _render_verification)
    if not result.ok:
        context.exit(1)


@log.command("inspect")
@click.argument("directory", metavar="DIR/NODE-ID", type=NODE_DIRECTORY)
@click.option(
    "--from",
    "first",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="INDEX",
    help="First entry to show.",
)
@click.option("--count", type=click.IntRange(min=1), default=20, show_default=True, help="Entries to show.")
@output_option
def inspect_command(directory: Path, first: int, count: int, output: str) -> None:
    """Show entries by their headers: index, term, kind, position, size, bytes of state commands, chain checksum."""
    try:
        lines = [_entry_line(meta) for meta in inspect(str(directory), first, count)]
    except LogError as error:
        raise AdminError(str(error)) from error
    if first and not lines:
        raise AdminError(
            f"{directory} has no entry {first} and none behind it: `dledger log verify` says what there is"
        )
    emit(lines, output, _render_entries)


def verify_logs(directories: tuple[Path, ...]) -> Verification:
    """Check each directory and compare them; raises `AdminError` for one that holds no node."""
    for directory in directories:
        holder = _holder(directory)
        if holder:
            click.echo(
                f"warning: {directory} is in use by process {holder}, its newest entries may be missed", err=True
            )
    try:
        reports = [verify(str(directory)) for directory in directories]
        comparison = compare(reports) if len(reports) > 1 else None
    except LogError as error:
        raise AdminError(str(error)) from error
    problems = any(report.problems for report in reports)
    return Verification(not problems and (comparison is None or comparison.equal), reports, comparison)


def _holder(directory: Path) -> str | None:
    """Return the pid in the lock file while a live process holds the lock, else None."""
    try:
        descriptor = os.open(directory / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
    finally:
        os.close(descriptor)
    return None


def _entry_line(meta: EntryMeta) -> EntryLine:
    kind = EntryKind(meta.kind).name.lower().replace("_", "-")
    return EntryLine(meta.index, meta.term, kind, meta.position, meta.size, meta.channel, meta.chain_crc)


def _render_entries(lines: list[EntryLine]) -> str:
    rows = [
        (line.index, line.term, line.kind, line.position, line.size, line.command_bytes, f"{line.chain_crc:08x}")
        for line in lines
    ]
    return columns(("index", "term", "kind", "position", "size", "commands", "chain crc"), rows)


def _render_verification(result: Verification) -> str:
    return "\n".join(_verification_lines(result))


def _verification_lines(result: Verification) -> Iterator[str]:
    for report in result.logs:
        yield (
            f"{report.directory}: {'ok' if not report.problems else 'DAMAGED'}, {report.entries} entries "
            f"({report.first_index}..{report.last_index}), bytes {report.first_position}..{report.end_position} in "
            f"{report.segments} segment(s), committed up to {report.committed_position}, sha256 {report.sha256}"
        )
        yield from (f"  {problem}" for problem in report.problems)
    comparison = result.comparison
    if comparison is None:
        return
    where = f"committed bytes {comparison.first_position}..{comparison.end_position}"
    if comparison.first_difference >= 0:
        yield f"{where} DIFFER, first at {comparison.first_difference}"
    elif comparison.equal:
        yield f"{where} are identical"
    else:
        yield f"{where} show no difference, but not everything verifies"
