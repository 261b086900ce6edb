"""`dledger log`: commands that read logs offline, without a running node."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from dledger.errors import CorruptionError, LogError
from dledger.store.disk import OsDisk
from dledger.store.identity import LOCK_NAME
from dledger.store.segments import DIRECTORY as SEGMENTS
from dledger.store.verify import Comparison, VerifyReport, compare, inspect, verify
from dledger.types import EntryKind, EntryMeta
from dledger_remoting.errors import RecordError

from ..errors import AdminError
from ..help import HelpGroup
from ..output import columns, emit, output_option, say
from ..progress import Progress, WatchedDisk
from .log_export import NODE_DIRECTORY, export_command


class Verification(msgspec.Struct, frozen=True):
    """Result of `log verify`; `comparison` is None for a single directory."""

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


@click.group(cls=HelpGroup)
def log() -> None:
    """Check, show and export logs of stopped nodes, or copies of them; nothing is changed."""


log.add_command(export_command)


@log.command("verify")
@click.argument("directories", metavar="DIR/NODE-ID...", nargs=-1, required=True, type=NODE_DIRECTORY)
@output_option
@click.pass_context
def verify_command(context: click.Context, directories: tuple[Path, ...], output: str) -> None:
    """Check every byte of a node's log, and that no queue begins behind messages that the log keeps.

    With several directories it also checks that their committed bytes are equal. The exit code is 1 if something does
    not verify, or differs.
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
        lines = [_make_entry_line(meta) for meta in inspect(str(directory), first, count)]
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
        holder = _find_lock_holder(directory)
        if holder:
            say(f"warning: {directory} is in use by process {holder}, its newest entries may be missed")
    try:
        progress = Progress()
        reports = [_verify_log(str(directory), progress) for directory in directories]
        comparison = compare(reports) if len(reports) > 1 else None
    except LogError as error:
        raise AdminError(str(error)) from error
    problems = any(report.problems for report in reports)
    return Verification(not problems and (comparison is None or comparison.equal), reports, comparison)


def _verify_log(directory: str, progress: Progress) -> VerifyReport:
    """Return the report about a log. Messages that a queue's first offset hides are a problem, too.

    The search for them needs the broker's code. Without the extra `broker` it is left out, and a warning says so.
    """
    size = sum(file.stat().st_size for file in Path(directory, SEGMENTS).glob("*"))

    def on_read(read_bytes: int) -> None:
        progress.tell(f"{directory}: {read_bytes >> 20:,} of about {size >> 20:,} MiB checked so far")

    report = verify(directory, disk=WatchedDisk(directory, on_read))
    if not report.problems:
        try:
            from dledger_broker.features import FEATURES
            from dledger_broker.kernel.first_offsets import find_hidden
        except ModuleNotFoundError as error:
            say(f"warning: {directory}: first offsets are not checked without the extra broker ({error})")
            return report
        try:
            report.problems += map(str, find_hidden(report, FEATURES, OsDisk(directory, read_only=True)))
        except RecordError:
            pass  # no broker wrote this log
        except CorruptionError as error:
            reason = f"this version does not read what it holds: {error}"
            say(f"warning: {directory}: first offsets are not checked, for {reason}")
    return report


def _find_lock_holder(directory: Path) -> str | None:
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


def _make_entry_line(meta: EntryMeta) -> EntryLine:
    kind = EntryKind(meta.kind).name.lower().replace("_", "-")
    return EntryLine(meta.index, meta.term, kind, meta.position, meta.size, meta.channel, meta.chain_crc)


def _render_entries(lines: list[EntryLine]) -> str:
    if not lines:
        return "the log has no entries yet"
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
    compared_range = f"committed bytes {comparison.first_position}..{comparison.end_position}"
    if comparison.first_difference >= 0:
        yield f"{compared_range} DIFFER, first at {comparison.first_difference}"
    elif comparison.equal:
        yield f"{compared_range} are identical"
    else:
        yield f"{compared_range} show no difference, but not everything verifies"
