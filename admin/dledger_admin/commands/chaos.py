"""`dledger chaos`: the commands of the component of that name, which the base install does not bring along."""

from __future__ import annotations

import importlib

import click

from ..extras import require

_NEEDED = ("aiohttp", "jinja2", "matplotlib", "toxiproxy")


class _Chaos(click.Group):
    """Imports the component when one of its commands is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return self._component().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self._component().get_command(ctx, cmd_name)

    @staticmethod
    def _component() -> click.Group:
        require("chaos", *_NEEDED)
        component: click.Group = importlib.import_module("dledger_chaos.cli").chaos
        return component


@click.command(cls=_Chaos)
def chaos() -> None:
    """Faults on real processes: a cluster behind proxies, workloads, histories, checkers, a report."""
