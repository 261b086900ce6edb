"""`dledger node rescue`: the survivor of a group that lost its majority for good goes on alone, or a copy of a node."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from ..asking import Asking, asks_first
from ..cluster.manifest import require_manifest
from ..errors import AdminError, WrongUsageError
from ..output import emit, output_option
from .completing import nodes
from .log_export import NODE_DIRECTORY
from .options import DATA_VARIABLE, AbsolutePath

if TYPE_CHECKING:
    from dledger.replica.start.rescue import LogEnd
    from dledger_broker.config import BrokerConfig

_CONNECT_TIMEOUT_S: Final = 2.0
"""Time limit for the connection to a voter that should be gone."""


class Rescue(msgspec.Struct, frozen=True):
    """Result of `node rescue`."""

    node: str
    directory: str
    group_identity: str
    state: str


@dataclass(frozen=True, slots=True)
class _Case:
    """The survivor, its configuration, and the other directories that were found."""

    config: BrokerConfig
    survivor: LogEnd
    others: Mapping[Path, LogEnd | str]
    as_copy: bool

    @property
    def directory(self) -> Path:
        return Path(self.config.data_dir)

    def voters(self) -> list[str]:
        """The other voters that the survivor's log lists."""
        own_id = self.survivor.identity.node_id
        return sorted(voter.node_id for voter in self.survivor.membership.voters if voter.node_id != own_id)


@click.command()
@click.option(
    "--data", type=AbsolutePath(), envvar=DATA_VARIABLE, show_envvar=True, metavar="DIR", help="A cluster of `up`."
)
@click.option(
    "--config", type=AbsolutePath(), metavar="FILE", help="The node's configuration, if `up` did not make it."
)
@click.argument("node_id", metavar="[NODE-ID]", required=False, shell_complete=nodes)
@click.option(
    "--compare",
    multiple=True,
    type=NODE_DIRECTORY,
    metavar="DIR",
    help="Another node's directory, or a copy of it, to be compared; repeatable. The nodes in --data are always "
    "compared.",
)
@click.option(
    "--as-copy",
    is_flag=True,
    help="The directory is a copy of a node whose group may go on, so the copy becomes another group.",
)
@asks_first
@output_option
def rescue(
    data: Path | None,
    config: Path | None,
    node_id: str | None,
    compare: tuple[Path, ...],
    as_copy: bool,
    asking: Asking,
    output: str,
) -> None:
    """Make a stopped node the only voter of its group, whose other voters are lost for good.

    Messages that only the lost nodes had are lost. The group goes on as its next incarnation. The lost nodes cannot
    come back into it with their data: empty their directories, and they join again. The command is refused while
    another voter answers.
    """
    case = _load_case(data, config, node_id, compare, as_copy=as_copy)
    if not as_copy:
        _refuse_answering_voters(case)
    if not asking.agreed(lambda: list(_list_effects(case)), output):
        return
    identity = _rescue(case)
    state = "is another group of one voter now" if as_copy else "is the only voter of its group from its next start on"
    emit(Rescue(case.config.node_id, str(case.directory), identity, state), output, _render)


def _load_case(
    data: Path | None, config: Path | None, node_id: str | None, compare: Sequence[Path], *, as_copy: bool
) -> _Case:
    from dledger.errors import LogError
    from dledger.replica.start.rescue import look
    from dledger.store.disk import OsDisk
    from dledger_broker.config import load_config
    from dledger_broker.errors import BrokerError

    directories: list[Path] = list(compare)
    node_directory: Path | None = None
    if config is not None:
        if node_id is not None:
            raise WrongUsageError("NODE-ID goes with --data: a configuration names its node")
    elif data is None or node_id is None:
        raise WrongUsageError("give --data DIR and NODE-ID for a cluster of `up`, or --config FILE for any other node")
    else:
        layout = require_manifest(data).layout(data)
        place = layout.place(node_id)
        config, node_directory = place.config_file, place.directory
        if not as_copy:
            directories += [
                member.directory
                for member in layout.members(place.group)
                if member != place and member.directory.is_dir()
            ]
    try:
        loaded = load_config(config)
        if node_directory is not None and Path(loaded.data_dir) != node_directory:
            raise AdminError(
                f"{node_directory} was moved or copied: its configuration is for {loaded.data_dir}. Correct data_dir "
                f"in {config}"
            )
        survivor = look(OsDisk(str(loaded.data_dir), read_only=True), str(loaded.data_dir))
    except (BrokerError, LogError, OSError) as error:
        raise AdminError(str(error)) from error
    others: dict[Path, LogEnd | str] = {}
    for directory in directories:
        try:
            others[directory] = look(OsDisk(str(directory), read_only=True), str(directory))
        except (LogError, OSError) as error:
            others[directory] = str(error)
    return _Case(loaded, survivor, others, as_copy)


def _refuse_answering_voters(case: _Case) -> None:
    """Refuse while another voter answers: with it there may be a majority."""
    peers = case.config.peers
    for voter in case.voters():
        if voter in peers and _is_answering(peers[voter].host, peers[voter].port):
            raise AdminError(
                f"{voter} answers at {peers[voter]}: a voter that runs may have what this one lacks, and would go on"
                " beside it. Stop it for good first; if a majority can be started, start that instead (nothing was"
                " changed)"
            )


def _is_answering(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), _CONNECT_TIMEOUT_S) as connection:
            return bool(connection.getsockname() != connection.getpeername())
    except OSError:
        return False


def _list_effects(case: _Case) -> Iterator[str]:
    survivor, config = case.survivor, case.config
    last_entry = f"{survivor.last_index} of term {survivor.last_term}, durable up to {survivor.durable_index}"
    yield f"{config.node_id} ({case.directory}) has entries up to {last_entry}"
    for directory, other in case.others.items():
        if isinstance(other, str):
            yield f"{directory} cannot be compared: {other}"
        elif other.identity.group != survivor.identity.group:
            yield f"{directory} is of group {other.identity.group}, not {survivor.identity.group}"
        elif other.progress > survivor.progress:
            yield (
                f"{directory} HAS MORE, up to {other.last_index} of term {other.last_term}: what it has more is lost;"
                f" rescue {other.identity.node_id} instead unless it cannot be started"
            )
        else:
            yield f"{directory} has no more, up to {other.last_index} of term {other.last_term}"
    if case.as_copy:
        yield "the copy leaves its group: it gets an identity of its own, and never meets the old one's nodes again"
        return
    lost = case.voters()
    if lost:
        unknown = sorted({voter for voter in lost if voter not in config.peers})
        yield f"messages that were acknowledged by {' and '.join(lost)} alone, behind entry {survivor.last_index}"
        yield f"the votes of {', '.join(lost)}: their directories never come back into this group"
        if unknown:
            names = ", ".join(unknown)
            yield f"{names} could not be asked, for no configuration has the address: be sure that it is stopped"
    else:
        yield "nothing of others: it is the only voter already, and only gets the next incarnation of its group"


def _rescue(case: _Case) -> str:
    from dledger.config import ReplicaConfig
    from dledger.errors import IdentityError, LogError
    from dledger.reopening import boot_id
    from dledger.replica.start.rescue import rescue as rescue_directory
    from dledger.store.disk import OsDisk
    from dledger.store.identity import DirectoryLock
    from dledger_broker.features import COMMANDS
    from dledger_broker.features.group_identity.table import SetGroupIdentity

    config = case.config
    replica = ReplicaConfig(
        config.cluster,
        config.broker_group,
        config.node_id,
        frozenset((*config.peers, config.node_id)),
        flush="async" if config.flush == "async" else "sync",
        segment_bytes=config.segment_bytes,
        reserve_bytes=config.reserve_bytes,
        data_dir=str(case.directory),
    )

    def command(identity: str, replaces: bool) -> bytes:
        return COMMANDS.encode(SetGroupIdentity(identity, replaces))

    try:
        lock = DirectoryLock.acquire(str(case.directory), os.getpid())
    except IdentityError as error:
        raise AdminError(f"{config.node_id} runs: {error}") from error
    try:
        return rescue_directory(
            OsDisk(str(case.directory)), replica, command, _make_id, boot_id=boot_id(), as_copy=case.as_copy
        )
    except (LogError, OSError) as error:
        raise AdminError(f"{config.node_id} is not rescued: {error}") from error
    finally:
        lock.release()


def _make_id() -> str:
    return uuid.uuid4().hex


def _render(result: Rescue) -> str:
    return f"{result.node} {result.state}; the group's identity is {result.group_identity}"
