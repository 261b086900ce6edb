"""`dledger demo`."""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path

import click

from dledger_admin.errors import require

from ..demo.report import DemoReport
from ..output import emit, output_option
from ..signals import ending_signals
from .options import AbsolutePath


@click.command()
@click.option("--input", "source", type=AbsolutePath(), metavar="DIR", help="Ship this directory's files instead.")
@click.option("--keep", is_flag=True, help="Leave logs and rebuilt files behind and say where.")
@output_option
@click.pass_context
def demo(context: click.Context, source: Path | None, keep: bool, output: str) -> None:
    """Ship the standard library's source through three nodes, line by line, and kill the leader meanwhile.

    Two consumers of one group rebuild every file. At the end every SHA-256 is compared with the disk, and the three
    replicas' logs with each other. The exit code is 0 only if everything is equal, and no line is missing or out of
    order. Files are left behind only with --keep, or if one of these checks fails.
    """
    require("broker", "aiohttp", "prometheus_client", "rich")
    from rich.console import Console

    from ..demo.bars import progress_display
    from ..demo.corpus import directory, standard_library
    from ..demo.run import run_demo

    files = directory(source) if source else standard_library()
    console = Console(stderr=output == "json")
    work_dir = Path(tempfile.mkdtemp(prefix="dledger-demo-"))
    for number in ending_signals():
        signal.signal(number, signal.default_int_handler)
    megabytes = sum(file.size_bytes for file in files) / 1e6
    console.print(
        f"{len(files):,} files, {megabytes:.1f} MB, one message per line, from {source or 'the standard library'}"
    )
    report: DemoReport | None = None
    try:
        with progress_display(console) as progress:
            report = run_demo(files, work_dir, progress)
    finally:
        if keep or (report is not None and not report.holds):
            console.print(f"logs and rebuilt files are in {work_dir}")
        else:
            shutil.rmtree(work_dir, ignore_errors=True)
    emit(report, output, _render)
    if not report.holds:
        context.exit(1)


def _render(report: DemoReport) -> str:
    lines = report.lines()
    width = max(len(label) for label, _, _ in lines)
    shown = [f"{'✓' if good else '✗'} {label.ljust(width)}  {value}" for label, value, good in lines]
    return "\n".join(
        ["", *shown, "", "everything holds" if report.holds else "SOMETHING DOES NOT HOLD, see the lines with ✗"]
    )
