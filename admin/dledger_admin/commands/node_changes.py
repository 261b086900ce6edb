"""`dledger node lead` and `dledger node remove`: changes of a group, which need the group's secret."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Final, TypeAlias

import click
import msgspec
from click.core import ParameterSource

from dledger.errors import ConfigError
from dledger_base.secret import read_secret

from ..asking import Asking, asks_first
from ..cluster.layout import ClusterLayout
from ..cluster.manifest import require_manifest
from ..errors import AdminError, WrongUsageError
from ..health.survey import survey
from ..leaders import Leader, ask_to_lead, ask_to_remove, leader_with, leaders_among, leaders_on_this_machine
from ..output import emit, output_option
from .client_calls import run
from .completing import broker_groups, nodes
from .options import DATA_VARIABLE, AbsolutePath, namesrv_option
from .signing import signing

SECRET_VARIABLE: Final = "DLEDGER_SECRET_FILE"  # noqa: S105 - the name of a variable that names a file

_LeaderRequest: TypeAlias = Callable[[Leader, str, bytes], str]


_NO_CONFIRMATION: Final = Asking(yes=True, dry_run=False)


class GroupChange(msgspec.Struct, frozen=True):
    """Result of `node lead` and `node remove`; `leader` is the node that was asked."""

    node: str
    broker_group: str
    leader: str
    state: str


def _make_command(state: str, *, asks: bool = False) -> Callable[[_LeaderRequest], Callable[..., None]]:
    """Make a command of a function that asks a group's leader. Its options say where the leader and the secret are.

    `state` is the node's state in the result. With `asks` the operator has to agree first.
    """

    def decorate(ask: _LeaderRequest) -> Callable[..., None]:
        @wraps(ask)
        def command(
            node_id: str,
            data: Path | None,
            namesrv: str,
            broker_group: str | None,
            secret_file: Path | None,
            config: Path | None,
            output: str,
            asking: Asking = _NO_CONFIRMATION,
        ) -> None:
            layout = _find_layout(data)
            run_survey = partial(survey, namesrv, **signing())
            secret = _read_group_secret(
                secret_file or _find_secret_file(config) or (layout.secret_file if layout else None)
            )
            leaders = leaders_on_this_machine(layout) if layout else leaders_among(run(run_survey, namesrv))
            leader = leader_with(leaders, node_id, broker_group)
            if not asking.agreed(lambda: [_describe_removal(leader, node_id)], output):
                return
            text = ask(leader, node_id, secret)
            emit(GroupChange(node_id, leader.broker_group, leader.node, state), output, lambda _: text)

        result: Callable[..., None] = asks_first(command) if asks else command
        for option in reversed(_OPTIONS):
            result = option(result)
        return result

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
        help="Broker group of the node; needed if several have a node of this name.",
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
        help="Configuration of any node of the group, which names the secret file; instead of --secret-file.",
    ),
    output_option,
)


@click.command()
@_make_command("leads")
def lead(leader: Leader, node_id: str, secret: bytes) -> str:
    """Hand the leadership of a broker group over to one of its nodes.

    The group's leader is found in the cluster of --data, or through --namesrv, and asked on its HTTP port. It wants
    proof that the operator knows the group's secret. The secret is read from a file and not sent.
    """
    return ask_to_lead(leader, node_id, secret)


@click.command()
@_make_command("is being removed", asks=True)
def remove(leader: Leader, node_id: str, secret: bytes) -> str:
    """Take a node out of its broker group for good; stop it first, and take it out of the others' configurations.

    A node that still runs, and is among its leader's peers, joins again as a learner. The leader is found and asked as
    by `dledger node lead`.
    """
    return ask_to_remove(leader, node_id, secret)


def _describe_removal(leader: Leader, node_id: str) -> str:
    remaining = [member for member in leader.members if member != node_id]
    others = f"{', '.join(remaining)} are left, led by {leader.node}" if remaining else "nobody is left"
    return f"node {node_id} of {leader.broker_group}, with its vote: {others}"


def _find_layout(data: Path | None) -> ClusterLayout | None:
    """Return the layout of the cluster on this machine; None if the group is to be found through name servers.

    Raises `WrongUsageError` if the command line has both --data and --namesrv.
    """
    source = click.get_current_context().get_parameter_source
    if source("namesrv") is ParameterSource.COMMANDLINE:
        if source("data") is ParameterSource.COMMANDLINE:
            raise WrongUsageError("--data and --namesrv both say where the group is: give one of them")
        return None
    return None if data is None else require_manifest(data).layout(data)


def _read_group_secret(file: Path | None) -> bytes:
    if file is None:
        raise WrongUsageError(
            f"the group's secret is needed: say where it is with --secret-file FILE or {SECRET_VARIABLE}, or with "
            "--config FILE of one of its nodes"
        )
    try:
        return read_secret(file)
    except ConfigError as error:
        raise AdminError(str(error)) from error


def _find_secret_file(config: Path | None) -> Path | None:
    """Return the secret file that a node's configuration names, None without a configuration."""
    if config is None:
        return None
    from dledger_broker.config import load_config
    from dledger_broker.errors import ConfigError as BrokerConfigError

    try:
        secret_file = load_config(config).secret_file
    except BrokerConfigError as error:
        raise AdminError(str(error)) from error
    if secret_file is None:
        raise AdminError(f"{config} has no secret_file: its node takes no changes to its group")
    return secret_file
