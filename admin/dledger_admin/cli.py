"""The command tree of `dledger`; each command lives in its own module and is imported when it is used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from io import TextIOWrapper
from itertools import pairwise
from typing import Any, Final, NoReturn

import click
import msgspec

from dledger_base import native_part

from .commands.completing import contexts
from .commands.completion import is_asked_for
from .commands.options import is_utf8
from .contexts import CONTEXT_VARIABLE
from .errors import AdminError
from .help import HelpGroup
from .output import let_go_of_output

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
    "context": "context:context",
    "debug": "debug:debug",
    "spark": "spark:spark",
    "up": "up:up",
    "down": "up:down",
    "status": "status:status",
    "top": "top:top",
    "produce": "produce:produce",
    "consume": "consume:consume",
    "bench": "bench:bench",
    "demo": "demo:demo",
    "broker": "serve:broker",
    "namesrv": "serve:namesrv",
    "proxy": "serve:proxy",
    "completion": "completion:completion",
}
"""Command name to `module:attribute` below `dledger_admin.commands`."""

_PLUGGED_IN: Final = "dledger.commands"
"""Group of the entry points by which other distributions bring commands."""
_BROUGHT_BY: Final = {"chaos": "dledger-mq-chaos"}
"""Distributions of commands that are not part of this one."""

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
            "context",
            "debug",
            "spark",
        ),
    ),
    "Run and use": ("up", "down", "status", "top", "console", "produce", "consume", "bench", "demo", "chaos"),
    "Single processes, for service managers": ("broker", "namesrv", "proxy"),
    "Your shell": ("completion",),
}


class _LazyGroup(HelpGroup):
    """Imports a command's module when the command is named: extras stay optional."""

    sections = _SECTIONS

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return [*_COMMANDS, *sorted(entry_points(group=_PLUGGED_IN).names)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = _COMMANDS.get(cmd_name)
        if target is None:
            for point in entry_points(group=_PLUGGED_IN, name=cmd_name):
                plugged_in: click.Command = point.load()
                return plugged_in
            if cmd_name in _BROUGHT_BY and not ctx.resilient_parsing:
                ctx.fail(
                    f"{cmd_name!r} is a command of the distribution {_BROUGHT_BY[cmd_name]}, which is not installed: "
                    "`make wheel` builds it"
                )
            return None
        module, _, attribute = target.partition(":")
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
        """Run a command as click does, but print an `OSError` in one line, and no error for a shell that completes.

        With `-o json` print errors as JSON, too.
        """
        if is_asked_for():
            with suppress(Exception):
                super().main(*args, **extra)
            sys.exit(1)
        arguments = extra.get("args", args[0] if args else None)
        if not _wants_json(sys.argv[1:] if arguments is None else arguments):
            try:
                return super().main(*args, **extra)
            except OSError as error:  # click itself handles a closed pipe quietly
                failure = _convert_os_error(error)
                failure.show()
                sys.exit(failure.exit_code)
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except click.Abort:
            _show_as_json(AdminError("interrupted"))
        except click.ClickException as error:
            _show_as_json(error)
        except OSError as error:
            _show_as_json(_convert_os_error(error))
        sys.exit(code if isinstance(code, int) else 0)


def _wants_json(arguments: Sequence[str]) -> bool:
    """Return whether the arguments ask for JSON, without parsing them: parsing may fail, and its error is JSON, too."""
    return bool({"-ojson", "--output=json"}.intersection(arguments)) or any(
        name in ("-o", "--output") and value == "json" for name, value in pairwise(arguments)
    )


def _show_as_json(error: click.ClickException) -> NoReturn:
    """Print an error as one JSON document on standard error, and end with its exit code."""
    click.echo(msgspec.json.encode({"error": error.format_message()}), err=True)
    sys.exit(error.exit_code)


def _convert_os_error(error: OSError) -> AdminError:
    let_go_of_output()
    reason = error.strerror or str(error)
    return AdminError(f"{error.filename} cannot be used: {reason}" if error.filename else reason)


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dledger-mq", prog_name="dledger", message=_VERSION)
@click.option(
    "--context",
    envvar=CONTEXT_VARIABLE,
    show_envvar=True,
    metavar="NAME",
    shell_complete=contexts,
    help="Cluster in `dledger context list`, for commands that take --namesrv.  [default: the current context]",
)
def main(context: str | None) -> None:
    """RocketMQ's clients on a Raft-replicated commit log: run clusters, use topics, inspect logs."""
    del context  # `choose_cluster` finds it
    if isinstance(sys.stdout, TextIOWrapper):  # do not fail on characters that the terminal cannot encode
        sys.stdout.reconfigure(errors="backslashreplace")
