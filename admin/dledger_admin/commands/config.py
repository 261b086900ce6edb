"""`dledger config`: configuration files of brokers and name servers, judged by the components that read them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from dledger.config_keys.origins import Origin
from dledger.config_keys.properties import SUFFIXES, read_properties
from dledger_broker.addresses import Address
from dledger_broker.broker_conf import WITHOUT_EFFECT
from dledger_broker.config import KEYS as BROKER_KEYS
from dledger_broker.config import BrokerConfig
from dledger_broker.config import load_config as load_broker_config
from dledger_broker.config import origins_of as origins_of_broker
from dledger_broker.errors import ConfigError as BrokerConfigError
from dledger_broker.start_files import read_files as read_files_of_broker
from dledger_namesrv.config import KEYS as NAMESRV_KEYS
from dledger_namesrv.config import TABLE as NAMESRV_TABLE
from dledger_namesrv.config import ConfigError as NamesrvConfigError
from dledger_namesrv.config import NameServerConfig
from dledger_namesrv.config import load_config as load_namesrv_config
from dledger_namesrv.config import origins_of as origins_of_namesrv
from dledger_namesrv.start_files import read_files as read_files_of_namesrv

from ..cluster.toml_text import TomlValue, dump
from ..errors import AdminError
from ..help import HelpGroup
from ..output import emit, output_option
from .live_config import live, set_live, unset

_ONLY_BROKERS: Final = {*BROKER_KEYS.by_name, *BROKER_KEYS.aliases, *WITHOUT_EFFECT} - {
    *NAMESRV_KEYS.by_name,
    *NAMESRV_KEYS.aliases,
    NAMESRV_TABLE,
}

_FILE: Final = click.Path(path_type=Path, dir_okay=False)


class CheckedFile(msgspec.Struct, frozen=True):
    """A configuration file in the result of `config check`; `error` says why a process would not start with it."""

    file: str
    of: str
    error: str | None
    warnings: list[str]


class ShownValue(msgspec.Struct, frozen=True, omit_defaults=True, rename={"source": "from"}):
    """A key in the result of `config show`: its value in effect, and where that comes from; `line` and `name` say where
    in the file, and under which name.
    """

    value: TomlValue
    source: str
    line: int | None = None
    name: str | None = None


@click.group(cls=HelpGroup)
def config() -> None:
    """Check configuration files of nodes and name servers, show what they come to, and set keys of running brokers."""


config.add_command(live)
config.add_command(set_live)
config.add_command(unset)


@config.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=_FILE)
@output_option
@click.pass_context
def check(context: click.Context, files: tuple[Path, ...], output: str) -> None:
    """Say whether a broker or a name server would start with these files, and what is wrong with each.

    A file with a key that only brokers have is a broker's, any other a name server's. The secrets and certificates
    that it names are read as at a start; ports and directories of data are not looked at. Exit code 1 if one is
    refused.
    """
    result = [_checked(file) for file in files]
    emit(result, output, _render_checks)
    if any(one.error for one in result):
        context.exit(1)


@config.command()
@click.argument("file", metavar="FILE", type=_FILE)
@click.option("--host", metavar="HOST", help="As on a name server's command line, where it counts before the file.")
@click.option("--port", type=int, metavar="PORT", help="As --host.")
@click.option("--data", type=click.Path(path_type=Path), metavar="DIR", help="As --host.")
@output_option
def show(file: Path, host: str | None, port: int | None, data: Path | None, output: str) -> None:
    """Print the configuration that a file comes to: with all defaults, aliases replaced, paths whole.

    Each value says where it comes from: the line of the file, with RocketMQ's name if it stands there, the command
    line, its default, or other keys that it follows from. The environment says nothing of any.
    """
    flags = {name: value for name, value in (("host", host), ("port", port), ("data", data)) if value is not None}
    if flags and _is_of_broker(file):
        raise AdminError(f"{file} is a broker's, whose command line has no --{next(iter(flags))}")
    try:
        loaded = _load(file, flags)
        found = origins_of_broker(file) if isinstance(loaded, BrokerConfig) else origins_of_namesrv(file, flags)
    except (BrokerConfigError, NamesrvConfigError) as error:
        raise AdminError(str(error)) from error
    emit(_shown(loaded, found), output, _render_shown)


def _checked(file: Path) -> CheckedFile:
    of = "broker" if _is_of_broker(file) else "name server"
    try:
        loaded = _load(file, {})
    except (BrokerConfigError, NamesrvConfigError) as error:
        return CheckedFile(str(file), of, str(error), [])
    try:
        _read_files(loaded)
    except (BrokerConfigError, NamesrvConfigError) as error:
        return CheckedFile(str(file), of, f"{file}: {error}", [])
    return CheckedFile(str(file), of, None, loaded.warnings() if isinstance(loaded, BrokerConfig) else [])


def _read_files(loaded: BrokerConfig | NameServerConfig) -> None:
    """Read what a start would read. Raise the component's `ConfigError`."""
    if isinstance(loaded, BrokerConfig):
        read_files_of_broker(loaded)
    else:
        read_files_of_namesrv(loaded)


def _load(file: Path, flags: Mapping[str, Any]) -> BrokerConfig | NameServerConfig:
    """Raise the component's `ConfigError`."""
    return load_broker_config(file) if _is_of_broker(file) else load_namesrv_config(file, flags)


def _is_of_broker(file: Path) -> bool:
    try:
        text = file.read_text(encoding="utf-8")
        table = read_properties(text) if file.suffix in SUFFIXES else tomllib.loads(text)
    except (OSError, ValueError):
        return True  # whose reader says what is wrong
    return not _ONLY_BROKERS.isdisjoint(table)


def _shown(loaded: BrokerConfig | NameServerConfig, found: Mapping[str, Origin]) -> dict[str, ShownValue]:
    keys = BROKER_KEYS if isinstance(loaded, BrokerConfig) else NAMESRV_KEYS
    shown: dict[str, ShownValue] = {}
    for key in keys.by_name.values():
        value, origin = getattr(loaded, key.name), found[key.name]
        source = "other keys" if origin.source == "default" and value != key.default else origin.source
        if value is not None:
            shown[key.name] = ShownValue(_value(value), source, origin.line, origin.name)
    return shown


def _value(value: object) -> TomlValue:
    """Return a value as it is written in a file: an address as `host:port`, a path as text."""
    match value:
        case bool() | int() | float() | str():
            return value
        case dict():
            return {
                str(name): {"address": str(one)} if isinstance(one, Address) else str(one)
                for name, one in value.items()
            }
        case tuple():
            return [str(address) for address in value]
        case _:
            return str(value)


def _render_shown(shown: Mapping[str, ShownValue]) -> str:
    comments = {key: _comment(key, one) for key, one in shown.items()}
    return dump({key: one.value for key, one in shown.items()}, comments).rstrip("\n")


def _comment(key: str, one: ShownValue) -> str:
    if one.line is None:
        return one.source
    return f"line {one.line}" + (f", {one.name}" if one.name != key else "")


def _render_checks(result: list[CheckedFile]) -> str:
    lines: list[str] = []
    for one in result:
        lines.append(one.error or f"{one.file}: good for a {one.of}")
        lines += [f"  warning: {warning}" for warning in one.warnings]
    return "\n".join(lines)
