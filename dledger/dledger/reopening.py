"""Opens and closes a node's directory, and waits where it lost something until the node may come back without it."""

from __future__ import annotations

import logging
import os
import uuid
from functools import partial
from pathlib import Path

from dledger.config import NodeConfig
from dledger.consensus.engine import EngineKind
from dledger.environment import Environment, called_back
from dledger.errors import ContradictionError, LostDirectoryError, StateDivergedError
from dledger.loop_guard import excepted
from dledger.net.links import Links
from dledger.net.settings import LinkLimits
from dledger.net.transport import Receiver
from dledger.replica.opening import Opened, identity_to_leave, open_directory, set_aside
from dledger.replica.replica import Replica
from dledger.replica.returning import Returning, only_voter
from dledger.store.disk import OsDisk, make_directory_durably
from dledger.store.identity import DirectoryLock, Identity
from dledger.types import ReplicaId

logger = logging.getLogger(__name__)


def make_links(config: NodeConfig, incarnation: str, receiver: Receiver, engine: EngineKind) -> Links:
    """The links of a node, which shows itself as that incarnation."""
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
    )


def mint_incarnation() -> str:
    """A fresh one."""
    return uuid.uuid4().hex


def lock_directory(config: NodeConfig) -> DirectoryLock:
    """Make the directory of a node that starts, if there is none, and keep other processes out of it."""
    with excepted("nothing is served yet"):
        make_directory_durably(str(config.data_dir))
        return DirectoryLock.acquire(str(config.data_dir), os.getpid())


def close_replica(config: NodeConfig, replica: Replica) -> None:
    """Close the files of a stopped replica.

    One that the group contradicts comes back as another incarnation, without its log.
    """
    with excepted("nothing is served any more"):
        replica.close(clean=replica.failure is None)
        if isinstance(replica.failure, ContradictionError | StateDivergedError):
            set_aside(OsDisk(str(config.data_dir)), replica.identity, mint_incarnation)


class NodeDirectory:
    """The directory of a node that starts."""

    def __init__(self, config: NodeConfig, environment: Environment, engine: EngineKind) -> None:
        self._config = config
        self._engine = engine
        self._environment = environment
        self._disk = OsDisk(str(config.data_dir))
        self._returning: Returning | None = None

    @property
    def waits_for(self) -> str | None:
        """While `open` waits: for what, and what an operator can do."""
        return None if self._returning is None else self._returning.describe()

    async def open(self) -> Opened:
        """Recover the directory.

        If it lost what its replica had promised this waits, as long as it takes, until a leader that lists the node
        answers; then the log is set aside, and the node comes back as another incarnation.

        Raises `LostDirectoryError` where the node is its group's only voter, and as
        `dledger.replica.opening.open_directory`.
        """
        config = self._config
        while True:
            try:
                with excepted("nothing is served yet"):
                    return open_directory(
                        self._disk,
                        config.replica,
                        mint_incarnation,
                        boot_id=_boot_id(),
                        bootstrap=config.bootstrap,
                        name=str(config.data_dir),
                        engine=self._engine.name,
                    )
            except LostDirectoryError as lost:
                if not config.peers:
                    raise only_voter(lost) from lost
                with excepted("nothing is served yet"):
                    identity = identity_to_leave(self._disk, config.replica, mint_incarnation, self._engine.name)
                await self._wait_for_leader(lost, identity)
                with excepted("nothing is served yet"):
                    aside = set_aside(self._disk, identity, mint_incarnation)
                logger.warning(
                    "node=%s event=set_aside directory=%s incarnation=%s was=%s"
                    " reason='a leader answered'"
                    " consequence='what this node held is kept in its newest aside-<n>, which may be deleted once the"
                    " node has caught up'",
                    config.node_id,
                    config.data_dir,
                    aside.incarnation,
                    identity.incarnation,
                )

    async def _wait_for_leader(self, lost: LostDirectoryError, identity: Identity) -> None:
        returning = Returning(self._config.node_id, lost, self._config.peers, self._environment)
        links = make_links(self._config, identity.incarnation, returning, self._engine)
        self._returning = returning
        try:
            await links.start()
            await called_back(partial(returning.start, links))
        finally:
            self._returning = None
            returning.stop()
            await links.stop()


def _boot_id() -> str:
    """Names this run of the operating system; empty where it cannot be told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
