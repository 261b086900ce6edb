"""`dledger config live`, `set` and `unset`: keys of brokers' configuration that are set while nodes run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from dledger_client import Admin

from ..errors import WrongUsageError
from ..operations import configuration
from ..operations.configuration import LiveLine
from ..output import columns, emit, output_option
from .client_calls import with_admin
from .options import broker_groups_option, namesrv_option


@click.command()
@namesrv_option
@output_option
def live(namesrv: str, output: str) -> None:
    """List the keys that are set for whole broker groups, and override the nodes' files."""
    emit(with_admin(namesrv, configuration.live_lines), output, _render)


@click.command("set")
@namesrv_option
@click.argument("settings", metavar="KEY=VALUE...", nargs=-1, required=True)
@broker_groups_option
@output_option
def set_live(namesrv: str, settings: tuple[str, ...], broker_groups: tuple[str, ...], output: str) -> None:
    """Change keys of the configuration on all nodes of broker groups while they run, without a restart.

    The values stay set under every leader and after restarts, until `config unset` removes them. Only live keys can be
    set, such as retention_hours=48; docs/configuration.md lists them. RocketMQ's names of keys work, too.
    """
    values: dict[str, str] = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not key or not separator or not value:
            raise WrongUsageError(f"{setting!r}: expected KEY=VALUE, such as retention_hours=48")
        values[key] = value
    emit(_put_settings(namesrv, values, broker_groups), output, _render)


@click.command()
@namesrv_option
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@broker_groups_option
@output_option
def unset(namesrv: str, keys: tuple[str, ...], broker_groups: tuple[str, ...], output: str) -> None:
    """Remove keys that were set, so that the nodes' files count again."""
    emit(_put_settings(namesrv, dict.fromkeys(keys, ""), broker_groups), output, _render)


def _put_settings(namesrv: str, values: Mapping[str, str], broker_groups: Sequence[str]) -> list[LiveLine]:
    """Set keys, and return all keys that are set afterwards."""

    async def work(admin: Admin) -> list[LiveLine]:
        return await configuration.put(admin, values, broker_groups)

    return with_admin(namesrv, work)


def _render(result: list[LiveLine]) -> str:
    if not result:
        return "nothing is set: the files of the nodes count"
    return columns(("broker group", "key", "value"), [(line.broker_group, line.key, line.value) for line in result])
