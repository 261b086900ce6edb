"""The leader's overlay: changes of topics and groups that are proposed and not yet applied."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from dledger.errors import LogError
from dledger.invariants import invariant
from dledger.log import Log
from dledger_broker.kernel.commands import LAST_BASE_KIND, Command, CommandRegistry
from dledger_broker.kernel.contexts import CommandContext, Done
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.topics import DeleteTopic, PutTopic
from dledger_broker.state.groups import GROUPS, DeleteGroup, PutGroup
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig


class Proposals:
    """Proposes commands, and lets whoever needs the same topic or group wait for the change in flight.

    Every `done` is called exactly once, with None after the change was applied or with the error; errors of `stage`
    (`NotLeaderError`, `BusyError`, `LogFullError`) arrive there too, and then nothing was proposed.
    `flush_offsets()` proposes the commits that were taken so far: what is deleted later must find them in the log.
    """

    def __init__(
        self,
        commands: CommandRegistry,
        state: Callable[[], BrokerState],
        log: Callable[[], Log],
        wall_ms: Callable[[], int],
        flush_offsets: Callable[[], None],
    ) -> None:
        self._commands = commands
        self._state = state
        self._log = log
        self._wall_ms = wall_ms
        self._flush_offsets = flush_offsets
        self._topics: dict[str, deque[Done]] = {}
        self._groups: dict[str, deque[Done]] = {}
        self._deleting: set[str] = set()
        self._deleting_groups: set[str] = set()

    def stage_command(self, command: Command, done: Done, *, privileged: bool = False) -> None:
        """Propose one command; every member must understand its kind. `privileged`: see `Node.stage`."""
        log, kind = self._log(), self._commands.kind_of(type(command))
        members = [member.node_id for member in log.membership.members]
        invariant(
            kind <= LAST_BASE_KIND or self._state().members.understood_by_all(kind, members),
            "a command is proposed only when all members understand it",
            kind=kind,
            members=members,
        )
        try:
            encoded = self._commands.encode(command)
            log.stage(0, None, commands=encoded, context=CommandContext(done), privileged=privileged)
        except LogError as error:
            done(error)

    def topic_deleting(self, name: str) -> bool:
        """True while the deletion of a topic is in flight: nothing may be staged for its queues."""
        return name in self._deleting

    def group_deleting(self, name: str) -> bool:
        """True while the deletion of a group is in flight: nothing may be committed for it."""
        return name in self._deleting_groups

    def put_topic(self, config: TopicConfig, done: Done) -> None:
        """Create or replace a topic, after a change of it that is in flight."""
        self.change_topic(config.topic_name, lambda _: config, done)

    def change_topic(self, name: str, make: Callable[[TopicConfig | None], TopicConfig], done: Done) -> None:
        """As `put_topic`, of what `make` makes of the configuration that stands by then; it raises nothing."""
        if name in self._topics:
            self._topics[name].append(lambda _: self.change_topic(name, make, done))
            return
        known = self._state().topics.get(name)
        config = make(None if known is None else known.config)
        self._change(self._topics, name, PutTopic(config, self._wall_ms()), done)

    def ensure_topic(self, config: TopicConfig, done: Done) -> None:
        """Create a topic unless it exists; a second caller gets the outcome of the first."""
        name = config.topic_name
        waiters = self._topics.get(name)
        if waiters is not None:
            waiters.append(lambda error: done(error) if error is not None else self.ensure_topic(config, done))
        elif name in self._state().topics:
            done(None)
        else:
            self.put_topic(config, done)

    def delete_topic(self, name: str, done: Done) -> None:
        """Remove a topic, after a change of it that is in flight; none is no error."""
        if name in self._topics:
            self._topics[name].append(lambda _: self.delete_topic(name, done))
            return
        self._flush_offsets()
        self._deleting.add(name)

        def finished(error: LogError | None) -> None:
            self._deleting.discard(name)
            done(error)

        self._change(self._topics, name, DeleteTopic(name), finished)

    def put_group(self, config: SubscriptionGroupConfig, done: Done) -> None:
        """Create or replace a consumer group, after a change of it that is in flight."""
        name = config.group_name
        if name in self._groups:
            self._groups[name].append(lambda _: self.put_group(config, done))
            return
        self._change(self._groups, name, PutGroup(config), done)

    def ensure_group(self, config: SubscriptionGroupConfig, done: Done) -> None:
        """Create a consumer group unless it exists; a second caller gets the outcome of the first."""
        name = config.group_name
        waiters = self._groups.get(name)
        if waiters is not None:
            waiters.append(lambda error: done(error) if error is not None else self.ensure_group(config, done))
        elif name in self._state().table(GROUPS).by_name:
            done(None)
        else:
            self.put_group(config, done)

    def delete_group(self, name: str, done: Done, *, clean_offsets: bool = False) -> None:
        """Remove a consumer group, after a change of it that is in flight; none is no error."""
        if name in self._groups:
            self._groups[name].append(lambda _: self.delete_group(name, done, clean_offsets=clean_offsets))
            return
        self._flush_offsets()
        self._deleting_groups.add(name)

        def finished(error: LogError | None) -> None:
            self._deleting_groups.discard(name)
            done(error)

        self._change(self._groups, name, DeleteGroup(name, clean_offsets), finished)

    def _change(self, pending: dict[str, deque[Done]], name: str, command: Command, done: Done) -> None:
        pending[name] = deque()
        try:
            self.stage_command(command, partial(self._finish, pending, name, done))
        except BaseException:
            del pending[name]  # or whoever needs this topic or group would wait for a change that nobody proposed
            raise

    @staticmethod
    def _finish(pending: dict[str, deque[Done]], name: str, done: Done, error: LogError | None) -> None:
        waiters = pending.pop(name)
        done(error)
        while waiters:
            if error is None and name in pending:
                # They would queue up again, one by one; thousands of changes at once would look at each other.
                waiters.extend(pending[name])
                pending[name] = waiters
                return
            waiters.popleft()(error)
