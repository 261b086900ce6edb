"""`dledger config`: configuration files of brokers and name servers, judged by the components that read them."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Final

import click
import msgspec

from dledger_broker.config import BrokerConfig
from dledger_broker.config import load_config as load_broker_config
from dledger_broker.errors import ConfigError as BrokerConfigError
from dledger_namesrv.config import ConfigError as NamesrvConfigError
from dledger_namesrv.config import NameServerConfig
from dledger_namesrv.config import load_config as load_namesrv_config

from ..cluster.toml_text import TomlTable, TomlValue, dump
from ..errors import AdminError
from ..help import HelpGroup
from ..output import emit, output_option

_PROPERTIES: Final = (".conf", ".properties")
_ONLY_BROKERS: Final = frozenset({"node_id", "broker_group", "data_dir", "peers", "brokerName"})

_FILE: Final = click.Path(path_type=Path, dir_okay=False)


class CheckedFile(msgspec.Struct, frozen=True):
    """A configuration file in the result of `config check`; `error` says why a process would not start with it."""

    file: str
    of: str
    error: str | None
    warnings: list[str]


@click.group(cls=HelpGroup)
def config() -> None:
    """Check configuration files of nodes and name servers, and show what they come to."""


@config.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=_FILE)
@output_option
@click.pass_context
def check(context: click.Context, files: tuple[Path, ...], output: str) -> None:
    """Say whether a broker or a name server would start with these files, and what is wrong with each.

    A file with a key that only brokers have is a broker's, any other a name server's. Exit code 1 if one is refused.
    """
    result = [_checked(file) for file in files]
    emit(result, output, _render_checks)
    if any(one.error for one in result):
        context.exit(1)


@config.command()
@click.argument("file", metavar="FILE", type=_FILE)
@output_option
def show(file: Path, output: str) -> None:
    """Print the configuration that a file comes to: with all defaults, aliases replaced, paths whole."""
    try:
        loaded = _load(file)
    except (BrokerConfigError, NamesrvConfigError) as error:
        raise AdminError(str(error)) from error
    emit(_table(loaded), output, lambda table: dump(table).rstrip("\n"))


def _checked(file: Path) -> CheckedFile:
    of = "broker" if _is_of_broker(file) else "name server"
    try:
        loaded = _load(file)
    except (BrokerConfigError, NamesrvConfigError) as error:
        return CheckedFile(str(file), of, str(error), [])
    return CheckedFile(str(file), of, None, loaded.warnings() if isinstance(loaded, BrokerConfig) else [])


def _load(file: Path) -> BrokerConfig | NameServerConfig:
    """Raise the component's `ConfigError`."""
    return load_broker_config(file) if _is_of_broker(file) else load_namesrv_config(file, {})


def _is_of_broker(file: Path) -> bool:
    if file.suffix in _PROPERTIES:
        return True
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return True  # whose reader says what is wrong
    return not _ONLY_BROKERS.isdisjoint(table)


def _table(loaded: BrokerConfig | NameServerConfig) -> TomlTable:
    values = {field.name: getattr(loaded, field.name) for field in fields(loaded)}
    return {key: _value(value) for key, value in values.items() if value is not None}


def _value(value: object) -> TomlValue:
    """Return a value as it is written in a file: an address as `host:port`, a path as text."""
    match value:
        case bool() | int() | float() | str():
            return value
        case dict():
            return {str(node_id): {"address": str(address)} for node_id, address in value.items()}
        case tuple():
            return [str(address) for address in value]
        case _:
            return str(value)


def _render_checks(result: list[CheckedFile]) -> str:
    lines: list[str] = []
    for one in result:
        lines.append(one.error or f"{one.file}: good for a {one.of}")
        lines += [f"  warning: {warning}" for warning in one.warnings]
    return "\n".join(lines)
