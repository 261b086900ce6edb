"""Options that several commands share."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

import click
from click.core import ParameterSource

from dledger_client import ClientError
from dledger_client.cluster.nameservers import parse_addresses

from ..cluster.layout import DEFAULT_NAMESRV_PORT, HOST
from ..cluster.starting import START_TIMEOUT_S
from ..contexts import load
from ..errors import WrongUsageError
from .completing import broker_groups, contexts

Command = TypeVar("Command", bound=Callable[..., object])

DATA_VARIABLE: Final = "DLEDGER_DATA"
NAMESRV_VARIABLE: Final = "DLEDGER_NAMESRV"
"""Variables of the environment that stand in for `--data` and `--namesrv` wherever a command takes these."""

_NAMED_CONTEXT: Final = "dledger.context"
"""Key of the name of a context, in `click.Context.meta`."""

LEAST_MS: Final = 10**11
"""Minimum number that counts as a time in ms, a moment in 1973. Smaller numbers are dates, seconds or offsets."""

_AGE: Final = re.compile(r"-([0-9]{1,9})([smhd])")
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class AbsolutePath(click.Path):
    """A path that is made absolute, because processes are recognised by the absolute path of their configuration."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the absolute path. Fail if it is not UTF-8, because configuration files could not hold it."""
        path = Path(str(super().convert(str(value), param, ctx))).resolve()
        if not is_utf8(str(path)):
            self.fail(f"{str(path)!r} is not UTF-8: give another path", param, ctx)
        return path


class NameServers(click.ParamType):  # type: ignore[type-arg]  # older versions, which are allowed, are not generic
    """Addresses of name servers, checked and kept as text."""

    name = "addresses"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text. Fail if it is not a list of addresses."""
        try:
            parse_addresses(value)
        except ClientError as error:
            self.fail(str(error), param, ctx)
        return value


def is_utf8(text: str) -> bool:
    """Tell whether an argument or a path came as UTF-8; Python keeps other bytes as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class FiniteFloat(click.FloatRange):
    """A number in a range; `inf` and `nan`, which `float` takes, are refused."""

    def convert(self, value: float, parameter: click.Parameter | None, context: click.Context | None) -> float:
        """Return the number; raise `click.BadParameter`."""
        number = float(super().convert(value, parameter, context))
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number", parameter, context)
        return number


def time_ms(option: str, text: str, *, otherwise: str = "") -> int:
    """Return a time in ms since 1970.

    `text` is such a number, a time in ISO 8601, or an age such as `-15m`. A time without a time zone is local. Raises
    `WrongUsageError`, which says that `otherwise` and times are expected.
    """
    usage_error = WrongUsageError(
        f"{option} {text!r} is no time: {otherwise}milliseconds since 1970, at least {LEAST_MS}, a time such as "
        "2026-01-31T12:00 or 20260131, or an age such as -90s, -15m, -2h or -7d is expected"
    )
    if (age := _AGE.fullmatch(text)) is not None:
        return int(time.time() * 1000) - int(age[1]) * _UNIT_MS[age[2]]
    if text.isascii() and text.isdecimal() and len(text) != len("20260131"):
        if int(text) < LEAST_MS:
            raise usage_error
        return int(text)
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise usage_error from None


def data_option(command: Command) -> Command:
    """Add `--data DIR`, as parameter `data`; the variable `DLEDGER_DATA` stands in for it."""
    return click.option(
        "--data",
        type=AbsolutePath(),
        required=True,
        envvar=DATA_VARIABLE,
        show_envvar=True,
        metavar="DIR",
        help="Directory of the cluster.",
    )(command)


def namesrv_option(command: Command) -> Command:
    """Add `--namesrv HOST:PORT[;HOST:PORT...]`, as parameter `namesrv`; `DLEDGER_NAMESRV` stands in for it.

    A context stands in for it, too: see `choose_cluster`. `--context` may also stand behind the command's name; help
    shows it once, as an option of `dledger`.
    """
    context_option = click.option(
        "--context",
        expose_value=False,
        hidden=True,
        is_eager=True,
        metavar="NAME",
        shell_complete=contexts,
        callback=_note_context,
    )
    return click.option(
        "--namesrv",
        default=f"{HOST}:{DEFAULT_NAMESRV_PORT}",
        envvar=NAMESRV_VARIABLE,
        show_default=True,
        show_envvar=True,
        type=NameServers(),
        metavar="HOST:PORT",
        help="Name servers, separated by semicolons.",
        callback=choose_cluster,
    )(context_option(command))


def _note_context(ctx: click.Context, param: click.Parameter, name: str | None) -> None:
    del param
    if name:
        ctx.meta[_NAMED_CONTEXT] = name


def choose_cluster(ctx: click.Context, param: click.Parameter, namesrv: str | None) -> str | None:
    """Return the name servers of a command, and let the context that counts stand in for the variables of its account.

    1. A context that is named (`--context`, or the variable) counts as a whole, whatever other variables say.
    2. Without one, `--namesrv` or its variable counts. No context does: its secret is not for another cluster.
    3. Without these, the current context counts. A variable for TLS or the account counts more.

    Raises `WrongUsageError` if `--context` and `--namesrv` both say where the cluster is, `AdminError` for a context
    that is not there.
    """
    named = ctx.meta.get(_NAMED_CONTEXT) or ctx.find_root().params.get("context")
    source = ctx.get_parameter_source(str(param.name))
    if named:
        if source is ParameterSource.COMMANDLINE:
            raise WrongUsageError("--context and --namesrv both say which cluster: give one of them")
        chosen = load().find(named)
        _set_variables(ctx, chosen.variables())
        return chosen.namesrv
    if source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
        return namesrv
    contexts = load()
    if not contexts.current:
        return namesrv
    current = contexts.contexts[contexts.current]
    _set_variables(ctx, {name: text for name, text in current.variables().items() if name not in os.environ})
    return current.namesrv


def _set_variables(ctx: click.Context, variables: Mapping[str, str]) -> None:
    """Set variables of the environment until the command ends. Processes that it starts, as Spark's, have them too."""
    former = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)

    def restore() -> None:
        for name, text in former.items():
            if text is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = text

    ctx.call_on_close(restore)


def broker_groups_option(command: Command) -> Command:
    """Add `--broker-group B`, repeatable, as parameter `broker_groups`: a command changes something on these only."""
    return click.option(
        "--broker-group",
        "broker_groups",
        multiple=True,
        shell_complete=broker_groups,
        help="Only on this broker group; repeatable.  [default: all]",
    )(command)


def start_timeout_option(command: Command) -> Command:
    """Add `--timeout SECONDS`, as parameter `timeout`, beside `--detach`; see `start_patience_s`."""
    return click.option(
        "--timeout",
        type=FiniteFloat(min=0),
        metavar="SECONDS",
        help="With --detach: give up after this time without progress of any node. Reading the log and applying "
        f"committed entries are progress.  [default: {START_TIMEOUT_S:.0f}]",
    )(command)


def start_patience_s(timeout_s: float | None, *, detach: bool) -> float:
    """Return the seconds that `--timeout` gives, or its default. Raises `click.UsageError` without `--detach`."""
    if timeout_s is not None and not detach:
        raise click.UsageError("--timeout goes with --detach: in the foreground nothing is given up")
    return START_TIMEOUT_S if timeout_s is None else timeout_s
