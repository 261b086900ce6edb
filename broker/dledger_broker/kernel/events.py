"""Events of a node, and the order in which its parts are told of them.

A listener overrides the methods of the events that it needs. `Events` finds the overriding methods once, when the
listener is added, and calls them in the order in which listeners were added. That order is: what the node makes before
its features, the parts of features in the order of `FEATURES`, what the node makes after them.

If several events follow each other, all listeners are told of one before any is told of the next:

1. A replica that takes no proposals any more: `unready`, then `new_leadership`, `leader_changed`, `resume_waiting`.
2. A batch of applied entries: `topics_changed`, `groups_changed`, `members_changed`, then the answers to those who
   staged the entries, then `messages_arrived`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from dledger.errors import NotLeaderError
from dledger.statemachine import Leadership
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.requests import Request
from dledger_remoting.headers import UnregisterClientHeader


class EventListener:
    """Receiver of a node's events, on the event loop. All methods do nothing."""

    # ---------------------------------------------------------------- leadership

    def unready(self, error: NotLeaderError) -> None:
        """Fail what waits to be proposed, with `error`, because this replica takes no proposals now."""

    def new_leadership(self, leadership: Leadership) -> None:
        """Note a change of role, term or leader. No request that waited for it has gone on yet."""

    def leader_changed(self) -> None:
        """Note that `LeadershipView` shows another readiness, leader, or leader's address."""

    def name_servers_changed(self) -> None:
        """Note that a name server took this node's registration, or cannot be reached."""

    def resume_waiting(self) -> None:
        """Handle the requests that waited for `leader_changed`, when all others know of it."""

    def prepare_handover(self) -> None:
        """Propose what is collected, because another node is about to lead. This replica still takes proposals."""

    # ---------------------------------------------------------------- replicated state

    def topics_changed(self) -> None:
        """Note that topics were changed, or that a snapshot replaced everything."""

    def groups_changed(self) -> None:
        """Note that consumer groups were changed, or that a snapshot replaced everything."""

    def members_changed(self) -> None:
        """Note that a member understands other command kinds, or that a feature has become active."""

    def prepare_deletion(self) -> None:
        """Propose what is collected, because the deletion of a topic or a group is about to be proposed."""

    def refused(self, position: int) -> None:
        """Note that nothing is written of what was staged at a position or behind it, for want of space."""

    def messages_arrived(self, queues: Sequence[QueueState]) -> None:
        """Note that messages can be read in these queues, some of which are listed more than once."""

    def group_reset(self) -> None:
        """Note that the reset of a group has ended, perhaps with an error after a part of it was applied."""

    # ---------------------------------------------------------------- clients

    def client_beat(self, request: Request, client_id: str) -> None:
        """Note a client's heartbeat that counts, before it is answered."""

    def client_left(self, request: Request, header: UnregisterClientHeader) -> None:
        """Note that a client leaves a group, before its request is answered."""

    def name_made(self, account: str, messages: int, size: int) -> None:
        """Charge an account for a topic or group that it makes, as for so many messages and bytes."""

    def sends_go_on(self) -> None:
        """Stage the sends that are gathered, because sends that arrived before them and waited are about to go on."""


EVENTS: Final = tuple(
    name for name, value in vars(EventListener).items() if callable(value) and not name.startswith("_")
)
"""Names of all events."""
_Calls: TypeAlias = tuple[Callable[[], None], ...]


class Events:
    """Events of one node. Each attribute has the methods to call, in their order."""

    def __init__(self) -> None:
        self.unready: tuple[Callable[[NotLeaderError], None], ...] = ()
        self.new_leadership: tuple[Callable[[Leadership], None], ...] = ()
        self.leader_changed: _Calls = ()
        self.name_servers_changed: _Calls = ()
        self.resume_waiting: _Calls = ()
        self.prepare_handover: _Calls = ()
        self.topics_changed: _Calls = ()
        self.groups_changed: _Calls = ()
        self.members_changed: _Calls = ()
        self.prepare_deletion: _Calls = ()
        self.refused: tuple[Callable[[int], None], ...] = ()
        self.messages_arrived: tuple[Callable[[Sequence[QueueState]], None], ...] = ()
        self.group_reset: _Calls = ()
        self.client_beat: tuple[Callable[[Request, str], None], ...] = ()
        self.client_left: tuple[Callable[[Request, UnregisterClientHeader], None], ...] = ()
        self.name_made: tuple[Callable[[str, int, int], None], ...] = ()
        self.sends_go_on: _Calls = ()

    def add(self, *listeners: EventListener) -> None:
        """Tell further listeners, after those that were added before."""
        for listener in listeners:
            for name in EVENTS:
                if getattr(type(listener), name) is not getattr(EventListener, name):
                    setattr(self, name, (*getattr(self, name), getattr(listener, name)))
