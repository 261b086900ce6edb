"""Changes of topics that this leader proposes."""

from __future__ import annotations

from collections.abc import Callable, Collection

from dledger.environment import Environment
from dledger.errors import LogError
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.leadership import Replica
from dledger_broker.kernel.overlay import ChangesInFlight, Overlay
from dledger_broker.kernel.topics import DeleteTopic, PutTopic
from dledger_remoting.topics import TopicConfig


class TopicProposals:
    """Proposer of changes of topics. A change waits for a change of the same topic that is in flight.

    Every `done` is called as `Overlay` says.
    """

    def __init__(self, overlay: Overlay, replica: Replica, env: Environment) -> None:
        self._changes = ChangesInFlight(overlay)
        self.deleting: Collection[str] = self._changes.deleting
        """Names of the topics whose deletion is in flight. Nothing may be staged for their queues."""
        self._replica = replica
        self._env = env

    def topic_deleting(self, name: str) -> bool:
        """Return whether the deletion of a topic is in flight, so that nothing may be staged for its queues."""
        return name in self.deleting

    def put_topic(self, config: TopicConfig, done: Done) -> None:
        """Create or replace a topic, after a change of it that is in flight."""
        self.change_topic(config.topic_name, lambda _: config, done)

    def change_topic(self, name: str, make: Callable[[TopicConfig | None], TopicConfig], done: Done) -> None:
        """Change a topic as `put_topic` does. `make` gets its configuration once it is its turn, and must not raise."""
        if self._changes.wait(name, lambda _: self.change_topic(name, make, done)):
            return
        known = self._replica.state.topics.get(name)
        config = make(None if known is None else known.config)
        self._changes.propose(name, PutTopic(config, self._env.wall_ms()), done)

    def ensure_topic(self, config: TopicConfig, done: Done) -> None:
        """Create a topic unless it exists. A second caller gets the outcome of the first."""

        def changed(error: LogError | None) -> None:
            if error is None:
                self.ensure_topic(config, done)
            else:
                done(error)

        name = config.topic_name
        if self._changes.wait(name, changed):
            return
        if name in self._replica.state.topics:
            done(None)
        else:
            self.put_topic(config, done)

    def delete_topic(self, name: str, done: Done) -> None:
        """Remove a topic, after a change of it that is in flight. A missing topic counts as removed."""
        if not self._changes.wait(name, lambda _: self.delete_topic(name, done)):
            self._changes.propose_deletion(name, DeleteTopic(name), done)
