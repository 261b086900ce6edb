"""Overlay of the leader: changes that are proposed and not applied yet, and the callers that wait for them."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final

from dledger.errors import LogError
from dledger_base.invariants import invariant
from dledger_broker.kernel.activation import ACTIVATE_FEATURES
from dledger_broker.kernel.commands import LAST_BASE_KIND, Command, CommandRegistry
from dledger_broker.kernel.contexts import CommandContext, Done
from dledger_broker.kernel.events import Events
from dledger_broker.kernel.leadership import Replica

RESERVE_FOR_TRIMS: Final = 0.5
"""Minimum share of the reserved disk space that is left to trims, which make room."""


class Overlay:
    """Proposer of commands.

    Every `done` is called exactly once, with None after the change was applied, otherwise with the error. Errors of
    `stage` (`NotLeaderError`, `BusyError`, `LogFullError`) go to `done` too, and then nothing was proposed.
    `events` tells those who collect changes of an imminent deletion: the changes must be in the log ahead of it.
    """

    def __init__(self, commands: CommandRegistry, replica: Replica, events: Events) -> None:
        self.events = events
        self._commands = commands
        self._replica = replica

    def stage_command(self, command: Command, done: Done, *, privileged: bool = False) -> None:
        """Propose one command, whose kind may be proposed now. `privileged`: see `Node.stage`."""
        self.require_understood(self._commands.kind_of(type(command)))
        try:
            encoded = self._commands.encode(command)
            self._replica.log.stage(0, None, commands=encoded, context=CommandContext(done), privileged=privileged)
        except LogError as error:
            done(error)

    def kind_of(self, command: type[Command]) -> int:
        """Return the kind under which commands of a type are written."""
        return self._commands.kind_of(command)

    @property
    def may_use_reserve(self) -> bool:
        """True if, on a full disk, commands that let consumers continue may use some of the reserved space.

        Raises `NotLeaderError` if the log has failed, and its node is about to end.
        """
        return self._replica.log.reserve_left > RESERVE_FOR_TRIMS

    def require_understood(self, kind: int) -> None:
        """Check that a command kind may be proposed now.

        A kind of an activated feature may be once that feature is active. Other kinds may be once every member
        understands them. For the activation itself only the voters count: a learner that does not know activations
        stops at the first.
        """
        state, membership = self._replica.state, self._replica.log.membership
        feature = state.activation.owner_of(kind)
        if feature is not None:
            invariant(feature in state.activation.since, "a feature's commands follow its activation", kind=kind)
            return
        members = membership.voters if kind == ACTIVATE_FEATURES else membership.members
        names = [member.node_id for member in members]
        invariant(
            kind <= LAST_BASE_KIND or state.members.understood_by_all(kind, names),
            "a command is proposed only when all members understand it",
            kind=kind,
            members=names,
        )


class ChangesInFlight:
    """Changes in flight of named things, one at a time for each name. Other changes of the same name wait for the
    outcome.

    `deleting` are the names whose deletion is in flight. Other code only reads it.
    """

    def __init__(self, overlay: Overlay) -> None:
        self.deleting: set[str] = set()
        self._overlay = overlay
        self._waiting: dict[str, deque[Done]] = {}

    def wait(self, name: str, waiter: Done) -> bool:
        """Call `waiter` with the outcome of the change in flight. Return False if no change is in flight."""
        waiters = self._waiting.get(name)
        if waiters is None:
            return False
        waiters.append(waiter)
        return True

    def propose(self, name: str, command: Command, done: Done) -> None:
        """Propose a change of a name that has no change in flight."""
        self._waiting[name] = deque()
        try:
            self._overlay.stage_command(command, partial(self._finish, name, done))
        except BaseException:
            del self._waiting[name]  # otherwise later changes of this name would wait for a change that nobody proposed
            raise

    def propose_deletion(self, name: str, command: Command, done: Done) -> None:
        """Propose the deletion of a name, as `propose` does."""
        for prepare in self._overlay.events.prepare_deletion:
            prepare()
        self.deleting.add(name)

        def finished(error: LogError | None) -> None:
            self.deleting.discard(name)
            done(error)

        self.propose(name, command, finished)

    def _finish(self, name: str, done: Done, error: LogError | None) -> None:
        waiters = self._waiting.pop(name)
        done(error)
        while waiters:
            if error is None and name in self._waiting:
                # A waiter has begun another change. The other waiters would queue up behind it again, one by one. With
                # thousands of changes at once, each outcome would call all of them.
                waiters.extend(self._waiting[name])
                self._waiting[name] = waiters
                return
            waiters.popleft()(error)
