"""`dledger debug`: one file for somebody who looks for a fault from afar."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import msgspec
from click.core import ParameterSource

from dledger_base.extras import package_version
from dledger_client import ClientError
from dledger_spark.signing import TLS_KEY_VARIABLE

from ..bundle.archive import Archive, Missing
from ..bundle.cluster import add_cluster
from ..bundle.local import add_directory, local_access, secret_files
from ..bundle.secrets import Scrubber, secrets_in
from ..cluster.layout import ClusterLayout
from ..cluster.manifest import require_manifest
from ..errors import AdminError, WrongUsageError
from ..help import HelpGroup
from ..operations.access import Access
from ..output import emit, output_option
from .log import verify_logs
from .options import DATA_VARIABLE, AbsolutePath, namesrv_option
from .signing import command_access

DEFAULT_LOG_MIB: Final = 4


class BundleResult(msgspec.Struct, frozen=True):
    """Result of `debug bundle`: the file, its size, the number of files in it, and what could not be got."""

    file: str
    bytes: int
    files: int
    missing: list[Missing]


@click.group(cls=HelpGroup)
def debug() -> None:
    """Tell somebody else how a cluster is."""


@debug.command()
@click.option(
    "--data",
    type=AbsolutePath(),
    envvar=DATA_VARIABLE,
    show_envvar=True,
    metavar="DIR",
    help="Directory of a cluster of this machine: adds logs and configurations.",
)
@namesrv_option
@click.option(
    "--into",
    type=AbsolutePath(),
    metavar="FILE",
    help="File to write, a tar with gzip.  [default: dledger-bundle-TIME.tar.gz here]",
)
@click.option(
    "--log-mib",
    type=click.IntRange(1, 1024),
    default=DEFAULT_LOG_MIB,
    show_default=True,
    help="Size of the end of each log file that is taken, in MiB.",
)
@click.option("--verify", is_flag=True, help="With --data: check every byte of every log, which reads all of them.")
@output_option
@click.pass_context
def bundle(
    ctx: click.Context, data: Path | None, namesrv: str, into: Path | None, log_mib: int, verify: bool, output: str
) -> None:
    """Write one file with health, metrics, configurations, the ends of logs, and no secret.

    It has no bodies of messages, but names of topics, groups, accounts and hosts: look through it before you give it
    away. The result and the file name everything that could not be got, as from nodes that are down.
    """
    if verify and data is None:
        raise WrongUsageError("--verify goes with --data: logs are checked on the machine that has them")
    layout = None if data is None else require_manifest(data).layout(data)
    access = command_access(namesrv)
    if layout is not None:
        if ctx.get_parameter_source("namesrv") is not ParameterSource.COMMANDLINE:
            access = Access(layout.namesrv_address, access.credentials, access.tls)
        access = local_access(layout, access)
    file = into or Path.cwd() / f"dledger-bundle-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz"
    if file.exists():
        raise AdminError(f"{file} exists: give another --into, or remove it")
    result = _write(file, access, layout, log_mib << 20, verify=verify)
    emit(result, output, _render)


def _write(file: Path, access: Access, layout: ClusterLayout | None, log_bytes: int, *, verify: bool) -> BundleResult:
    scrubber = Scrubber(_secrets(access, layout))
    with Archive(file, package_version(), scrubber) as archive:
        try:
            asyncio.run(add_cluster(archive, access))
        except (ClientError, OSError) as error:
            archive.lacks("what the cluster tells", error)
        if layout is None:
            archive.lacks("logs and configurations", "without --data they are not reached: run this on each machine")
        else:
            add_directory(archive, layout, log_bytes)
            if verify:
                _add_verification(archive, layout)
    return BundleResult(str(file), file.stat().st_size, archive.count, archive.missing)


def _secrets(access: Access, layout: ClusterLayout | None) -> Iterator[bytes]:
    """Yield the secrets that this command and the cluster use."""
    if access.credentials is not None:
        yield access.credentials.secret.encode()
    if key := os.environ.get(TLS_KEY_VARIABLE):
        yield from secrets_in([Path(key)])
    if layout is not None:
        yield from secrets_in(secret_files(layout))


def _add_verification(archive: Archive, layout: ClusterLayout) -> None:
    for group in layout.group_names():
        try:
            result = verify_logs(tuple(place.directory for place in layout.members(group)))
        except (AdminError, OSError) as error:
            archive.lacks(f"check of the logs of {group}", error)
        else:
            archive.add_json(f"local/verification-{group}.json", result)


def _render(result: BundleResult) -> str:
    lines = [f"{result.file}: {result.files} files, {result.bytes:,} bytes"]
    lines += [f"missing: {one.what}: {one.why}" for one in result.missing]
    return "\n".join(lines)
