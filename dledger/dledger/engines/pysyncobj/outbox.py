"""Effects of a PySyncObj engine that its replica has not taken yet."""

from __future__ import annotations

from dledger.consensus.effects import Effect, Output, SaveHardState, SendCatchUp, SendEntries, SendMessage
from dledger.core.messages import Message
from dledger.types import HardState, ReplicaId

Sending = SendMessage | SendEntries | SendCatchUp


class Outbox:
    """Effects in their order.

    While term and vote are on their way to the disk, whatever is sent waits for them: it may reflect them.
    """

    def __init__(self) -> None:
        self.unsaved = False
        """Whether the newest term and vote are still to become durable."""
        self._effects: list[Effect] = []
        self._after_sync: list[Sending] = []

    def put(self, effect: Effect) -> None:
        """Ask for what does not wait."""
        self._effects.append(effect)

    def save(self, state: HardState) -> None:
        """Have term and vote saved."""
        self.unsaved = True
        self._effects.append(SaveHardState(state))

    def send(self, to: ReplicaId, message: Message) -> None:
        """Say something."""
        self.post(SendMessage(to, message))

    def post(self, sending: Sending) -> None:
        """Send something."""
        (self._after_sync if self.unsaved else self._effects).append(sending)

    def take(self) -> Output:
        """All effects since the last call."""
        output = Output(self._effects, self._after_sync)
        self._effects, self._after_sync = [], []
        return output
