"""Check whether another node belongs to this node's group, by the group identities that both show."""

from __future__ import annotations

from collections.abc import Callable

from dledger.types import ReplicaId
from dledger_base.group_identity import GroupIdentity, tell_apart


class Belonging:
    """Group identity that this node shows, and the check of other nodes' identities against it.

    `group_id` is None in a directory of a version that knew of no identities, and empty in a directory that has joined
    no group yet. `lists` returns whether the log has a replica as a member. It is None until that is known.

    A node without an identity of its own learns the first one that an admitted node shows. While it runs, it admits
    only this identity and later incarnations. Otherwise it could take part in two groups of the same name.
    """

    def __init__(self, group_id: str | None = None) -> None:
        self.group_id = group_id
        self.lists: Callable[[ReplicaId], bool] | None = None
        self._learned_group_id = ""

    def find_mismatch(self, group_id: str | None, replica: ReplicaId) -> str | None:
        """Return why a node that shows `group_id` does not belong here; None if it does, or if that is not known."""
        own_group_id = self.group_id or self._learned_group_id
        if not own_group_id or group_id in ("", own_group_id):
            return None
        if group_id is not None:
            return None if self._is_later_incarnation(group_id) else tell_apart(group_id, own_group_id)
        if not self.group_id or self.lists is None or self.lists(replica):
            return None
        return (
            f"group identity {own_group_id} expected, none found, and the group's log does not list {replica}: its"
            " directory is of another group or from before it was removed; empty the directory to have it join"
        )

    def admit(self, group_id: str | None) -> None:
        """Note that a node that shows `group_id` was admitted."""
        self._learned_group_id = group_id or self._learned_group_id

    def _is_later_incarnation(self, group_id: str) -> bool:
        """Return whether this node has no identity, and the learned group was rescued and shows a later incarnation."""
        return not self.group_id and GroupIdentity.parse(self._learned_group_id).precedes(GroupIdentity.parse(group_id))
