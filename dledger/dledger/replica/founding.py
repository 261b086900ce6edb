"""Founding of a group by a node that asks its peers first.

A `--bootstrap` that stays in a unit file must not found a second group of the same name once the node's disk is
replaced. So a node whose directory is empty asks every peer, on the channel of `dledger.replica.asking`, whether that
peer is in a group. If any peer is, the node joins. If none is, the node founds. Of several nodes that ask each other,
the node with the smallest node id founds. A silent peer may be in a group, so the node waits for its answer.
"""

from __future__ import annotations

import logging
from typing import ClassVar

from dledger.replica.asking import GroupKnowledge, PeerInquiry

logger = logging.getLogger(__name__)


class FoundingInquiry(PeerInquiry[bool]):
    """Asks the peers until it is known whether to found the group or to join it."""

    event: ClassVar = "waits_for_peers"

    def describe(self) -> str:
        """Name the node that founds, or the silent peers, and say what an operator can do."""
        founder = next((peer for peer in self._peers if self._is_ahead(peer)), None)
        if founder is not None:
            return f"{founder} founds the group; this node waits until it can join"
        silent = ", ".join(peer for peer in self._peers if peer not in self._answers)
        return (
            f"this node is to found its group, and first asks whether there is one: no answer from {silent}. Start"
            f" every node of [peers] (only one of them with --bootstrap); --bootstrap=alone founds without asking"
        )

    def _own_answer(self) -> GroupKnowledge:
        return GroupKnowledge(founds=True)

    def _judge(self, peer: str, knowledge: GroupKnowledge) -> None:
        if knowledge.is_in_group:
            logger.warning(
                "node=%s event=group_exists peer=%s consequence=%r",
                self._node_id,
                peer,
                "this node joins that group as a learner, and founds none: remove --bootstrap from its command",
            )
            self._finish(result=False)
        elif self._answers.keys() >= set(self._peers) and not any(map(self._is_ahead, self._peers)):
            # A node that is no peer of this one may answer as well. Its answer does not stand for a silent peer.
            self._finish(result=True)

    def _is_ahead(self, peer: str) -> bool:
        knowledge = self._answers.get(peer)
        return knowledge is not None and knowledge.founds and peer < self._node_id
