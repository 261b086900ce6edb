"""Command kinds that members have told this node, until the leader records them in the table of members."""

from __future__ import annotations

from dledger.environment import Environment
from dledger.errors import LogError
from dledger_broker.kernel.members import Features
from dledger_broker.kernel.overlay import Overlay
from dledger_broker.kernel.replica import Replica
from dledger_broker.kernel.trying_again import TryingAgain


class ToldKinds:
    """What members understand as they said last; a node knows of itself from the start.

    Whoever leads next may be told others: a leader that is deposed forgets what it was told.
    """

    def __init__(
        self, node_id: str, kinds: tuple[int, ...], overlay: Overlay, replica: Replica, env: Environment
    ) -> None:
        """`kinds` are what `node_id`, this node, understands; an empty name is told to nobody."""
        self._own = {node_id: kinds} if node_id else {}
        self._told = dict(self._own)
        self._on_their_way: set[str] = set()
        self._overlay = overlay
        self._replica = replica
        self._again = TryingAgain(env, self._record_again)

    def learn(self, node_id: str, kinds: tuple[int, ...]) -> None:
        """A member has told which command kinds it understands."""
        self._told[node_id] = kinds

    def forget(self) -> None:
        """Forget what other members told."""
        self._told = dict(self._own)

    def record_all(self) -> None:
        """Leader: record what every member has told."""
        for node_id in list(self._told):
            self.record(node_id)

    def record(self, node_id: str) -> None:
        """Leader: record what a member has told, unless that is recorded or on its way.

        What is refused is tried again, for nobody else may say it again:

        1. Sends fill a leader's log before it is ready. 2. What it understands itself is refused: too many bytes wait
        for a majority. 3. Features stay inactive, as if it had not been upgraded, for as long as it leads.
        """
        kinds = self._told[node_id]
        if self._replica.state.members.kinds.get(node_id) == kinds or node_id in self._on_their_way:
            return
        self._on_their_way.add(node_id)

        def settled(error: LogError | None) -> None:
            self._on_their_way.discard(node_id)
            if error is not None:
                self._again.want()

        # Small and rare: a full disk is no reason to do without.
        self._overlay.stage_command(Features(node_id, kinds), settled, privileged=True)

    def _record_again(self) -> None:
        if self._replica.log.is_ready:
            self.record_all()
