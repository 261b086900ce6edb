"""`dledger config`: configuration files, judged by the components that read them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click
import msgspec

from dledger_base.certificates import find_expired
from dledger_base.config_keys.origins import Origin
from dledger_base.config_keys.reading import Keys
from dledger_broker.addresses import Address

from ..cluster.toml_text import TomlValue, dump
from ..errors import AdminError
from ..help import HelpGroup
from ..output import emit, output_option
from .config_kinds import kind_of
from .live_config import live, set_live, unset

_FILE_TYPE: Final = click.Path(path_type=Path, dir_okay=False)


class CheckedFile(msgspec.Struct, frozen=True):
    """A configuration file in the result of `config check`, for a broker, a name server or a proxy (`of`).

    `error` says why a process would not start with it, or that a certificate has expired.
    """

    file: str
    of: str
    error: str | None
    warnings: list[str]


class ShownValue(msgspec.Struct, frozen=True, omit_defaults=True, rename={"source": "from"}):
    """A key in the result of `config show`: the value in effect and its source.

    `line` is the key's line in the file, and `name` the key's name there.
    """

    value: TomlValue
    source: str
    line: int | None = None
    name: str | None = None


@click.group(cls=HelpGroup)
def config() -> None:
    """Check and show configuration files of nodes, name servers and proxies, and set keys of running brokers."""


config.add_command(live)
config.add_command(set_live)
config.add_command(unset)


@config.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=_FILE_TYPE)
@output_option
@click.pass_context
def check(context: click.Context, files: tuple[Path, ...], output: str) -> None:
    """Check whether a broker, name server or proxy would start with each of these files, and show the errors.

    A file with a key that only brokers have is a broker's. One with the table [proxy], or with a key that only proxies
    have, is a proxy's. Any other is a name server's. The secrets and certificates that it names are read as at a start;
    ports and data directories are not checked. Exit code 1 if a file is refused, or shows or trusts only a certificate
    that has expired.
    """
    result = [_check_file(file) for file in files]
    emit(result, output, _render_checks)
    if any(checked.error for checked in result):
        context.exit(1)


@config.command()
@click.argument("file", metavar="FILE", type=_FILE_TYPE)
@click.option("--host", metavar="HOST", help="Host as on a name server's command line, which overrides the file.")
@click.option("--port", type=int, metavar="PORT", help="As --host.")
@click.option("--data", type=click.Path(path_type=Path), metavar="DIR", help="As --host.")
@output_option
def show(file: Path, host: str | None, port: int | None, data: Path | None, output: str) -> None:
    """Print the configuration that results from a file: all defaults, aliases replaced, absolute paths.

    Each value names its source: a line of the file, the command line, its default, or other keys that it follows from.
    A line of the file is shown with RocketMQ's name if that stands there. The environment sets no key.
    """
    flags = {name: value for name, value in (("host", host), ("port", port), ("data", data)) if value is not None}
    kind = kind_of(file)
    for name in flags.keys() - kind.flags:
        raise AdminError(f"{file} is a {kind.name}'s, whose command line has no --{name}")
    try:
        loaded, value_origins = kind.load(file, flags), kind.origins(file, flags)
    except kind.error as error:
        raise AdminError(str(error)) from error
    emit(_collect_values(kind.keys, loaded, value_origins), output, _render_shown)


def _check_file(file: Path) -> CheckedFile:
    kind = kind_of(file)
    try:
        loaded = kind.load(file, {})
    except kind.error as error:
        return CheckedFile(str(file), kind.name, str(error), [])
    try:
        contexts = kind.read_files(loaded)
    except kind.error as error:
        return CheckedFile(str(file), kind.name, f"{file}: {error}", [])
    for context in contexts:
        if (expired := find_expired(context, time.time())) is not None:
            return CheckedFile(str(file), kind.name, f"{file}: {expired}", [])
    return CheckedFile(str(file), kind.name, None, kind.warnings(loaded))


def _collect_values(keys: Keys, loaded: object, value_origins: Mapping[str, Origin]) -> dict[str, ShownValue]:
    shown: dict[str, ShownValue] = {}
    for key in keys.settable:
        value, origin = getattr(loaded, key.name), value_origins[key.name]
        source = "other keys" if origin.source == "default" and value != key.default else origin.source
        if value is not None:
            shown[key.name] = ShownValue(_format_value(value), source, origin.line, origin.name)
    return shown


def _format_value(value: object) -> TomlValue:
    """Return a value as it is written in a file: an address as `host:port`, a path as text."""
    match value:
        case bool() | int() | float() | str():
            return value
        case dict():
            return {
                str(name): {"address": str(item)} if isinstance(item, Address) else str(item)
                for name, item in value.items()
            }
        case tuple():
            return [str(address) for address in value]
        case _:
            return str(value)


def _render_shown(shown: Mapping[str, ShownValue]) -> str:
    comments = {key: _format_comment(key, shown_value) for key, shown_value in shown.items()}
    return dump({key: shown_value.value for key, shown_value in shown.items()}, comments).rstrip("\n")


def _format_comment(key: str, shown_value: ShownValue) -> str:
    if shown_value.line is None:
        return shown_value.source
    return f"line {shown_value.line}" + (f", {shown_value.name}" if shown_value.name != key else "")


def _render_checks(result: list[CheckedFile]) -> str:
    lines: list[str] = []
    for checked in result:
        lines.append(checked.error or f"{checked.file}: good for a {checked.of}")
        lines += [f"  warning: {warning}" for warning in checked.warnings]
    return "\n".join(lines)
