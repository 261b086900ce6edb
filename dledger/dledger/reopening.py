"""Opening and closing of a node's directory. If it lost something, waits until the node may come back without that."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import TypeVar

from dledger.config import NodeConfig
from dledger.consensus.engine import EngineKind
from dledger.environment import Environment, called_back
from dledger.errors import ContradictionError, LostDirectoryError, StateDivergedError
from dledger.net.handshake import Belonging
from dledger.net.links import Links
from dledger.net.settings import LinkLimits
from dledger.net.transport import Receiver
from dledger.replica.replica import Replica
from dledger.replica.start.inquiries import FoundingInquiry, ReturnInquiry, only_voter_error
from dledger.replica.start.opening import Opened, is_empty, lost_directory_identity, open_directory, set_aside
from dledger.store.disk import OsDisk, make_directory_durably
from dledger.store.identity import DirectoryLock, Identity
from dledger.types import ReplicaId
from dledger_base.loop_guard import excepted

T = TypeVar("T")

logger = logging.getLogger(__name__)


def make_links(
    config: NodeConfig, incarnation: str, receiver: Receiver, engine: EngineKind, belonging: Belonging
) -> Links:
    """Return the links of a node, which shows itself as that incarnation."""
    return Links(
        ReplicaId(config.node_id, incarnation),
        cluster=config.cluster,
        group=config.group,
        segment_bytes=config.segment_bytes,
        secret=config.secret,
        bind=config.bind,
        advertise=config.advertised,
        peers=config.peers,
        receiver=receiver,
        codec=engine.codec,
        engine=engine.name,
        tls=config.tls,
        limits=LinkLimits.for_elections(config.election_max_ms),
        belonging=belonging,
    )


def mint_incarnation() -> str:
    """Return a fresh incarnation."""
    return uuid.uuid4().hex


def lock_directory(config: NodeConfig) -> DirectoryLock:
    """Make the directory of a node that starts, if it is missing, and lock other processes out of it."""
    with excepted("nothing is served yet"):
        make_directory_durably(str(config.data_dir))
        return DirectoryLock.acquire(str(config.data_dir), os.getpid())


def close_replica(config: NodeConfig, replica: Replica) -> None:
    """Close the files of a stopped replica.

    If the group contradicts the replica, its log is set aside, and it comes back as another incarnation without its
    log.
    """
    with excepted("nothing is served any more"):
        replica.close(clean=replica.failure is None)
        if isinstance(replica.failure, ContradictionError | StateDivergedError):
            set_aside(OsDisk(str(config.data_dir)), replica.own_group.directory, mint_incarnation)


class NodeDirectory:
    """Directory of a node that starts."""

    def __init__(
        self, config: NodeConfig, environment: Environment, engine: EngineKind, disk: OsDisk | None = None
    ) -> None:
        self._config = config
        self._engine = engine
        self._environment = environment
        self._disk = disk or OsDisk(str(config.data_dir))
        self._inquiry: ReturnInquiry | FoundingInquiry | None = None

    @property
    def waits_for(self) -> str | None:
        """Reason why `open` waits, with what an operator can do; None if it does not wait."""
        return None if self._inquiry is None else self._inquiry.describe()

    async def open(self) -> Opened:
        """Recover the directory.

        A node that is to found a group first asks its peers. It waits until one answers that it is in a group, or all
        that they are in none. If the directory lost promises of its replica, this waits, without limit, until a leader
        that lists the node answers. Then the log is set aside, and the node comes back as another incarnation.

        Raises `LostDirectoryError` if the node is its group's only voter, and as
        `dledger.replica.start.opening.open_directory`.
        """
        config, mint = self._config, mint_incarnation
        founds = config.bootstrap
        with excepted("nothing is served yet"):
            asks_peers = founds and bool(config.peers) and not config.bootstrap_alone and is_empty(self._disk)
        if asks_peers:
            # The same incarnation asks and joins, because a leader that hears the question adds it.
            incarnation = mint_incarnation()
            mint = partial(str, incarnation)
            founds = await self._ask_peers(incarnation)
        while True:
            try:
                with excepted("nothing is served yet"):
                    return open_directory(
                        self._disk,
                        config.replica,
                        mint,
                        boot_id=boot_id(),
                        bootstrap=founds,
                        name=str(config.data_dir),
                        engine=self._engine.name,
                    )
            except LostDirectoryError as loss:
                if not config.peers:
                    raise only_voter_error(loss) from loss
                with excepted("nothing is served yet"):
                    identity = lost_directory_identity(self._disk, config.replica, mint_incarnation, self._engine.name)
                await self._wait_for_leader(loss, identity)
                with excepted("nothing is served yet"):
                    new_identity = set_aside(self._disk, identity, mint_incarnation)
                logger.warning(
                    "node=%s event=set_aside directory=%s incarnation=%s was=%s"
                    " reason='a leader answered'"
                    " consequence='the former files of this node are in its newest aside-<n>, which may be deleted once"
                    " the node has caught up'",
                    config.node_id,
                    config.data_dir,
                    new_identity.incarnation,
                    identity.incarnation,
                )

    async def _wait_for_leader(self, loss: LostDirectoryError, identity: Identity) -> None:
        config = self._config
        returning = self._inquiry = ReturnInquiry(config.node_id, loss, config.peers, self._environment)
        links = make_links(config, identity.incarnation, returning, self._engine, Belonging(identity.group_id))
        await self._wait(returning, links, called_back(partial(returning.start, links)))

    async def _ask_peers(self, incarnation: str) -> bool:
        """Ask the peers, and return whether to found the group."""
        config = self._config
        founding = self._inquiry = FoundingInquiry(config.node_id, config.peers, self._environment)
        links = make_links(config, incarnation, founding, self._engine, Belonging(""))
        return await self._wait(founding, links, called_back(partial(founding.start, links)))

    async def _wait(
        self, inquiry: ReturnInquiry | FoundingInquiry, links: Links, conclusion: Coroutine[object, object, T]
    ) -> T:
        try:
            await links.start()
            return await conclusion
        finally:
            conclusion.close()
            self._inquiry = None
            inquiry.stop()
            await links.stop()


def boot_id() -> str:
    """Return an id of this run of the operating system; empty if there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
