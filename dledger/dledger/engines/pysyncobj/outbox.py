"""Effects of a PySyncObj engine that its replica has not taken yet."""

from __future__ import annotations

from dledger.consensus.effects import Effect, Output, SaveHardState, SendCatchUp, SendEntries, SendMessage
from dledger.core.messages import Message
from dledger.types import HardState, ReplicaId

SendEffect = SendMessage | SendEntries | SendCatchUp


class Outbox:
    """Effects in the order in which they were requested.

    While term and vote are being saved, messages wait for that, because they may reflect term and vote.
    """

    def __init__(self) -> None:
        self.unsaved = False
        """True while the newest term and vote are not durable yet."""
        self._effects: list[Effect] = []
        self._after_sync: list[SendEffect] = []

    def put(self, effect: Effect) -> None:
        """Add an effect that does not wait for term and vote."""
        self._effects.append(effect)

    def save(self, state: HardState) -> None:
        """Have term and vote saved."""
        self.unsaved = True
        self._effects.append(SaveHardState(state))

    def send(self, to: ReplicaId, message: Message) -> None:
        """Send a message once term and vote are durable."""
        self.post(SendMessage(to, message))

    def post(self, effect: SendEffect) -> None:
        """Send a message, entries or a run for catching up once term and vote are durable."""
        (self._after_sync if self.unsaved else self._effects).append(effect)

    def take(self) -> Output:
        """Return all effects since the last call."""
        output = Output(self._effects, self._after_sync)
        self._effects, self._after_sync = [], []
        return output
