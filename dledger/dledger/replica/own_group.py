"""Group that a replica belongs to, by its directory and by its log."""

from __future__ import annotations

import msgspec

from dledger.consensus.engine import Engine
from dledger.replica.scrub import PromiseScrub
from dledger.store.identity import Identity, IdentityFiles
from dledger.types import ReplicaId
from dledger_base.group_identity import GroupIdentity


class OwnGroup:
    """Identity of the group, and the replicas listed in it."""

    def __init__(self, files: IdentityFiles, engine: Engine, promises: PromiseScrub) -> None:
        self._files = files
        self._engine = engine
        self._promises = promises

    @property
    def directory(self) -> Identity:
        """Identity of the replica that owns the directory."""
        return self._files.identity

    def lists(self, replica: ReplicaId) -> bool:
        """Return whether the log has a replica as a member. True while the members are not known."""
        engine = self._engine
        return not engine.membership_is_known or replica in engine.membership.members

    def adopt(self, group_id: str) -> bool:
        """Take over the group identity that the log has. Returns False if the directory's identity takes precedence.

        A state from before a rescue has the earlier identity. The directory's is right until the entries behind that
        state are applied.
        """
        mine = self.directory.group_id
        if mine and not GroupIdentity.parse(mine).precedes(GroupIdentity.parse(group_id)):
            return False
        self._files.identity = msgspec.structs.replace(self.directory, group_id=group_id)
        self._promises.request_round()
        return True
