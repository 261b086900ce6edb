"""`dledger node lead` and `dledger node remove`: what changes a group, for those who know its secret."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Final, TypeAlias

import click
import msgspec
from click.core import ParameterSource

from dledger.errors import ConfigError
from dledger.net.secret import read_secret

from ..cluster.layout import ClusterLayout
from ..cluster.manifest import require_manifest
from ..errors import AdminError, WrongUsageError
from ..health.survey import survey
from ..leaders import Leader, ask_to_lead, ask_to_remove, leader_with, leaders_among, leaders_on_this_machine
from ..output import emit, output_option
from .client_calls import run
from .completing import broker_groups, nodes
from .options import DATA_VARIABLE, AbsolutePath, namesrv_option

SECRET_VARIABLE: Final = "DLEDGER_SECRET_FILE"  # noqa: S105 - the name of a variable that names a file

_Ask: TypeAlias = Callable[[Leader, str, bytes], str]


class GroupChange(msgspec.Struct, frozen=True):
    """Result of `node lead` and `node remove`; `leader` is the node that was asked."""

    node: str
    broker_group: str
    leader: str
    state: str


def _with_leader(state: str) -> Callable[[_Ask], Callable[..., None]]:
    """Make a command of what asks a group's leader: with options that say where it is and where the secret is.

    `state` is what becomes of the node.
    """

    def decorate(ask: _Ask) -> Callable[..., None]:
        @wraps(ask)
        def command(
            node_id: str,
            data: Path | None,
            namesrv: str,
            broker_group: str | None,
            secret_file: Path | None,
            config: Path | None,
            output: str,
        ) -> None:
            layout = _layout(data)
            look = partial(survey, namesrv)
            secret = _secret(secret_file or _secret_file_in(config) or (layout.secret_file if layout else None))
            leaders = leaders_on_this_machine(layout) if layout else leaders_among(run(look, namesrv))
            leader = leader_with(leaders, node_id, broker_group)
            text = ask(leader, node_id, secret)
            emit(GroupChange(node_id, leader.broker_group, leader.node, state), output, lambda _: text)

        for option in reversed(_OPTIONS):
            command = option(command)
        return command

    return decorate


_OPTIONS: Final = (
    click.argument("node_id", metavar="NODE-ID", shell_complete=nodes),
    click.option(
        "--data",
        type=AbsolutePath(),
        envvar=DATA_VARIABLE,
        show_envvar=True,
        metavar="DIR",
        help="Directory of a cluster of this machine, which also holds the secret.",
    ),
    namesrv_option,
    click.option(
        "--broker-group",
        metavar="B",
        help="The group, where several have a node of this name.",
        shell_complete=broker_groups,
    ),
    click.option(
        "--secret-file",
        type=AbsolutePath(),
        envvar=SECRET_VARIABLE,
        show_envvar=True,
        metavar="FILE",
        help="File with the secret of the group's nodes.",
    ),
    click.option(
        "--config",
        type=AbsolutePath(),
        metavar="FILE",
        help="Configuration of any node of the group, instead of --secret-file: it names that file.",
    ),
    output_option,
)


@click.command()
@_with_leader("leads")
def lead(leader: Leader, node_id: str, secret: bytes) -> str:
    """Hand the leadership of a broker group over to one of its nodes.

    The group's leader is found in the cluster of --data, or through --namesrv, and asked on its HTTP port. It wants
    proof of the group's secret, which is read from a file and not sent.
    """
    return ask_to_lead(leader, node_id, secret)


@click.command()
@_with_leader("is being removed")
def remove(leader: Leader, node_id: str, secret: bytes) -> str:
    """Take a node out of its broker group for good; stop it first, and take it out of the others' configurations.

    One that still runs, and is among its leader's peers, joins again as a learner. The leader is found and asked as by
    `dledger node lead`.
    """
    return ask_to_remove(leader, node_id, secret)


def _layout(data: Path | None) -> ClusterLayout | None:
    """The cluster of this machine that is meant; None if the group is to be found through name servers."""
    source = click.get_current_context().get_parameter_source
    if source("namesrv") is ParameterSource.COMMANDLINE:
        if source("data") is ParameterSource.COMMANDLINE:
            raise WrongUsageError("--data and --namesrv both say where the group is: give one of them")
        return None
    return None if data is None else require_manifest(data).layout(data)


def _secret(file: Path | None) -> bytes:
    if file is None:
        raise WrongUsageError(
            f"the group's secret is needed: say where it is with --secret-file FILE or {SECRET_VARIABLE}, or with "
            "--config FILE of one of its nodes"
        )
    try:
        return read_secret(file)
    except ConfigError as error:
        raise AdminError(str(error)) from error


def _secret_file_in(config: Path | None) -> Path | None:
    """The file that a node's configuration names."""
    if config is None:
        return None
    from dledger_broker.config import load_config
    from dledger_broker.errors import ConfigError as BrokerConfigError

    try:
        found = load_config(config).secret_file
    except BrokerConfigError as error:
        raise AdminError(str(error)) from error
    if found is None:
        raise AdminError(f"{config} has no secret_file: its node takes no changes to its group")
    return found
