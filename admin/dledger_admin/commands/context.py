"""`dledger context`: clusters under names, and the current one."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from click.shell_completion import CompletionItem

from ..contexts import Context, Contexts, contexts_file, load, require_name, save
from ..errors import AdminError, WrongUsageError
from ..help import HelpGroup
from ..output import columns, emit, output_option
from . import completing
from .options import NAMESRV_VARIABLE, AbsolutePath, NameServers


class ContextLine(msgspec.Struct, frozen=True):
    """A context: where its cluster is, which account its commands sign for, and the files that it names.

    `account` is null without credentials, and "" if the file cannot be read. Secrets are in no field.
    """

    name: str
    current: bool
    namesrv: str
    account: str | None
    tls: bool
    tls_ca: str
    tls_cert: str
    tls_key: str
    credentials: str


class ContextChange(msgspec.Struct, frozen=True):
    """A change of a context, and the name of the current one since, "" for none."""

    context: str
    state: str
    current: str


class ContextName(click.ParamType):  # type: ignore[type-arg]  # older versions, which are allowed, are not generic
    """The name of a context."""

    name = "name"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name. Fail if no context can have it."""
        try:
            require_name(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the contexts that begin with `incomplete`, none if the file cannot be read."""
        return [CompletionItem(name) for name in completing.contexts(ctx, param, incomplete)]


@click.group(cls=HelpGroup)
def context() -> None:
    """Clusters under names: addresses, TLS and account, for `dledger --context NAME`."""


@context.command()
@click.argument("name", type=ContextName())
@click.option(
    "--namesrv",
    type=NameServers(),
    required=True,
    envvar=NAMESRV_VARIABLE,
    show_envvar=True,
    metavar="HOST:PORT",
    help="Name servers, separated by semicolons.",
)
@click.option("--tls-ca", type=AbsolutePath(), metavar="FILE", help="Authorities that are trusted; turns TLS on.")
@click.option(
    "--tls-cert", type=AbsolutePath(), metavar="FILE", help="Certificate to show to servers that ask for one."
)
@click.option("--tls-key", type=AbsolutePath(), metavar="FILE", help="Key of the certificate.")
@click.option(
    "--credentials",
    type=AbsolutePath(),
    metavar="FILE",
    help="File whose first line is the account and whose second is its secret. The file is named, not copied.",
)
@click.option("--use", is_flag=True, help="Make it the current context.")
@click.option("--replace", is_flag=True, help="Replace a context of this name.")
@output_option
def add(
    name: str,
    namesrv: str,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    credentials: Path | None,
    use: bool,
    replace: bool,
    output: str,
) -> None:
    """Add a context. Nothing is asked of the cluster: `dledger --context NAME cluster info` tries it."""
    contexts = load()
    if name in contexts.contexts and not replace:
        raise AdminError(f"there is a context {name!r} already: give --replace to replace it, or another name")
    if tls_ca is None and (tls_cert or tls_key):
        raise WrongUsageError("--tls-cert and --tls-key go with --tls-ca, which turns TLS on")
    if tls_key is not None and tls_cert is None:
        raise WrongUsageError("--tls-key goes with --tls-cert: a key alone is of no use")
    made = Context(
        namesrv=namesrv,
        tls_ca=_checked("--tls-ca", tls_ca),
        tls_cert=_checked("--tls-cert", tls_cert),
        tls_key=_checked("--tls-key", tls_key),
        credentials=_checked("--credentials", credentials),
    )
    current = name if use else contexts.current
    save(Contexts(current, {**contexts.contexts, name: made}))
    state = "replaced" if name in contexts.contexts else "added"
    emit(ContextChange(name, state, current), output, _render_change)


def _checked(option: str, path: Path | None) -> str:
    """Return the path of a file that can be read, "" without one. Raises `AdminError`."""
    if path is None:
        return ""
    try:
        path.open("rb").close()
    except OSError as error:
        raise AdminError(f"{option} {path} cannot be read: {error.strerror or error}") from error
    return str(path)


@context.command()
@click.argument("name", type=ContextName(), required=False)
@click.option("--none", is_flag=True, help="Have no current context any more.")
@output_option
def use(name: str | None, none: bool, output: str) -> None:
    """Make a context the current one: commands use it unless they are told of another cluster."""
    if none == (name is not None):
        raise WrongUsageError("give the name of a context, or --none")
    contexts = load()
    if name is not None:
        contexts.find(name)
    save(Contexts(name or "", contexts.contexts))
    emit(ContextChange(name or "", "used" if name else "none is used", name or ""), output, _render_change)


@context.command("list")
@output_option
def list_contexts(output: str) -> None:
    """List the contexts; the current one has a star."""
    contexts = load()
    emit([_make_line(contexts, name) for name in sorted(contexts.contexts)], output, _render_list)


@context.command()
@click.argument("name", type=ContextName(), required=False)
@output_option
def show(name: str | None, output: str) -> None:
    """Show a context, by default the current one. Its account is shown, and no secret."""
    contexts = load()
    chosen = name or contexts.current
    if not chosen:
        raise AdminError("there is no current context: name one, or make one current with `dledger context use`")
    contexts.find(chosen)
    emit(_make_line(contexts, chosen), output, _render_one)


@context.command()
@click.argument("name", type=ContextName())
@output_option
def remove(name: str, output: str) -> None:
    """Remove a context. The files that it names, and the cluster, stay as they are."""
    contexts = load()
    contexts.find(name)
    current = "" if contexts.current == name else contexts.current
    save(Contexts(current, {key: value for key, value in contexts.contexts.items() if key != name}))
    emit(ContextChange(name, "removed", current), output, _render_change)


def _make_line(contexts: Contexts, name: str) -> ContextLine:
    one = contexts.contexts[name]
    account = _read_account(one.credentials) if one.credentials else None
    return ContextLine(
        name,
        name == contexts.current,
        one.namesrv,
        account,
        bool(one.tls_ca),
        one.tls_ca,
        one.tls_cert,
        one.tls_key,
        one.credentials,
    )


def _read_account(path: str) -> str:
    """Return the first line of a file of credentials, "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            return file.readline().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _render_change(result: ContextChange) -> str:
    if not result.context:
        return "no context is current"
    if result.state == "used":
        return f"{result.context} is the current context"
    current = result.current or "none"
    return f"context {result.context} {result.state}; current context: {current}"


def _describe_account(line: ContextLine) -> str:
    if line.account is None:
        return "-"
    return line.account or f"{line.credentials} cannot be read"


def _render_list(lines: list[ContextLine]) -> str:
    if not lines:
        return f"there is no context in {contexts_file()}: `dledger context add NAME --namesrv HOST:PORT` makes one"
    rows = [
        ("*" if line.current else "", line.name, line.namesrv, "TLS" if line.tls else "plain", _describe_account(line))
        for line in lines
    ]
    return columns(("", "context", "name servers", "connection", "account"), rows)


def _render_one(line: ContextLine) -> str:
    rows = [
        ("context", f"{line.name} (current)" if line.current else line.name),
        ("name servers", line.namesrv),
        ("account", _describe_account(line)),
        ("credentials", line.credentials or "-"),
        ("TLS authorities", line.tls_ca or "- (plain connections)"),
        ("TLS certificate", line.tls_cert or "-"),
        ("TLS key", line.tls_key or "-"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows)
