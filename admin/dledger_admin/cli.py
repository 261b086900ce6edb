"""The command tree of `dledger`; each command lives in its own module and is imported when it is used."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import Any, Final

import click

from dledger import native_part

from .commands.completion import is_asked_for
from .commands.options import is_utf8
from .errors import AdminError
from .help import HelpGroup

_VERSION: Final = f"%(prog)s, version %(version)s, native part: {native_part.version()}"
_COMMANDS: Final = {
    "cluster": "cluster_info:cluster",
    "node": "node:node",
    "topic": "topic:topic",
    "group": "group:group",
    "message": "message:message",
    "dlq": "dlq:dlq",
    "pin": "pin:pin",
    "quota": "quota:quota",
    "account": "account:account",
    "acl": "acl:acl",
    "log": "log:log",
    "config": "config:config",
    "spark": "spark:spark",
    "up": "up:up",
    "down": "up:down",
    "status": "status:status",
    "produce": "produce:produce",
    "consume": "consume:consume",
    "demo": "demo:demo",
    "chaos": "chaos:chaos",
    "broker": "serve:broker",
    "namesrv": "serve:namesrv",
    "completion": "completion:completion",
}
"""Command name to `module:attribute` below `dledger_admin.commands`."""

_SECTIONS: Final = {
    "Manage and look at": (
        *(
            "cluster",
            "node",
            "topic",
            "group",
            "message",
            "dlq",
            "pin",
            "quota",
            "account",
            "acl",
            "log",
            "config",
            "spark",
        ),
    ),
    "Run and use": ("up", "down", "status", "produce", "consume", "demo", "chaos"),
    "Single processes, for service managers": ("broker", "namesrv"),
    "Your shell": ("completion",),
}


class _LazyGroup(HelpGroup):
    """Imports a command's module when the command is named: extras stay optional."""

    sections = _SECTIONS

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        where = _COMMANDS.get(cmd_name)
        if where is None:
            return None
        module, _, attribute = where.partition(":")
        command: click.Command = getattr(importlib.import_module(f"dledger_admin.commands.{module}"), attribute)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split the arguments; raises `UsageError` for one that no file and no request could hold."""
        for argument in args:
            if not (is_utf8(argument) or ctx.resilient_parsing):
                raise click.UsageError(f"{argument!r} is not UTF-8")
        if args[:1] in (["version"], ["help"]):  # as other tools have it
            args[0] = f"--{args[0]}"
        return super().parse_args(ctx, args)

    def main(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401 - as click has it
        """As click's; what the system refuses is said in one line, and nothing to a shell that completes a line."""
        if is_asked_for():
            with suppress(Exception):
                super().main(*args, **extra)
            sys.exit(1)
        try:
            return super().main(*args, **extra)
        except OSError as error:  # but a closed pipe, which click ends quietly with
            _let_go_of_output()
            reason = error.strerror or str(error)
            failure = AdminError(f"{error.filename} cannot be used: {reason}" if error.filename else reason)
            failure.show()
            sys.exit(failure.exit_code)


def _let_go_of_output() -> None:
    """What could not be written is written nowhere: Python would try once more when it ends, and tell of it."""
    if sys.stdout is None:  # it is closed
        return
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dledger-mq", prog_name="dledger", message=_VERSION)
def main() -> None:
    """RocketMQ's clients on a Raft-replicated commit log: run clusters, use topics, inspect logs."""
    if isinstance(sys.stdout, TextIOWrapper):  # letters that a terminal does not know end no command
        sys.stdout.reconfigure(errors="backslashreplace")
