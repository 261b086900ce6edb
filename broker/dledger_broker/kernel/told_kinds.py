"""Command kinds that members have reported to this node, until the leader records them in the table of members."""

from __future__ import annotations

from dledger.environment import Environment
from dledger.errors import LogError
from dledger_broker.kernel.leadership import Replica
from dledger_broker.kernel.members import Features
from dledger_broker.kernel.overlay import Overlay
from dledger_broker.kernel.trying_again import RetryTimer


class ReportedKinds:
    """Command kinds of the members by their last reports. This node's own kinds are in it from the start.

    A deposed leader forgets the reports, because the members may report other kinds to the next leader.
    """

    def __init__(
        self, node_id: str, kinds: tuple[int, ...], overlay: Overlay, replica: Replica, env: Environment
    ) -> None:
        """Start with the kinds of this node, `node_id`. With an empty name, this node records no kinds of its own."""
        self._own = {node_id: kinds} if node_id else {}
        self._reported = dict(self._own)
        self._in_flight: set[str] = set()
        self._overlay = overlay
        self._replica = replica
        self._retry_timer = RetryTimer(env, self._retry_records)

    def learn(self, node_id: str, kinds: tuple[int, ...]) -> None:
        """Note the command kinds that a member understands."""
        self._reported[node_id] = kinds

    def forget(self) -> None:
        """Forget the kinds that other members reported."""
        self._reported = dict(self._own)

    def record_all(self) -> None:
        """Record, as the leader, the kinds that every member has reported."""
        for node_id in list(self._reported):
            self.record(node_id)

    def record(self, node_id: str) -> None:
        """Record, as the leader, the kinds that a member has reported, unless they are recorded or in flight.

        A refused record is tried again, because the member may not report its kinds again:

        1. Sends fill a leader's log before it is ready.
        2. The record of its own kinds is refused: too many bytes wait for a majority.
        3. Features stay inactive while it leads, as if it had not been upgraded.
        """
        kinds = self._reported[node_id]
        if self._replica.state.members.kinds.get(node_id) == kinds or node_id in self._in_flight:
            return
        self._in_flight.add(node_id)

        def settled(error: LogError | None) -> None:
            self._in_flight.discard(node_id)
            if error is not None:
                self._retry_timer.schedule()

        # The command is small and rare, so it may use the reserve of a full disk.
        self._overlay.stage_command(Features(node_id, kinds), settled, privileged=True)

    def _retry_records(self) -> None:
        if self._replica.log.is_ready:
            self.record_all()
