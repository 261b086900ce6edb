"""Engine whose messages have another type than the native engine's, so that code outside cannot look into them.

The engine decides as the native engine does. It has only the members that the boundary `Engine` names.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.consensus.effects import Output, SendEntries, SendMessage
from dledger.consensus.engine import Engine, EngineKind, EngineStart
from dledger.consensus.messages import Message, MessageCodec
from dledger.core.messages import CODEC
from dledger.engines.named import start_core
from dledger.types import EntryMeta, Lane, ReplicaId, SnapshotMeta

MARK = b"foreign "


@dataclass(frozen=True)
class Sealed:
    """Message of the native engine that shows only the fields that code outside the engine may read."""

    inside: Message

    @property
    def term(self) -> int:
        return self.inside.term

    @property
    def lane(self) -> Lane:
        return self.inside.lane

    @property
    def snapshot(self) -> SnapshotMeta | None:
        return self.inside.snapshot

    @property
    def entries(self) -> SealedEntries | None:
        return None if self.inside.entries is None else SealedEntries(self.inside)


@dataclass(frozen=True)
class SealedEntries:
    inside: Message

    def __getattr__(self, name: str) -> int:
        if name not in ("prev_index", "prev_term", "prev_chain", "count"):
            raise AttributeError(name)
        return getattr(self.inside.entries, name)

    def up_to(self, count: int) -> Sealed:
        return Sealed(self.inside.entries.up_to(count))

    def behind(self, count: int, last: EntryMeta) -> Sealed:
        return Sealed(self.inside.entries.behind(count, last))


class ForeignEngine:
    """Native core that sends and takes sealed messages."""

    def __init__(self, start: EngineStart) -> None:
        object.__setattr__(self, "_core", start_core(start))

    def __getattr__(self, name: str) -> object:
        if name not in vars(Engine) and name not in Engine.__annotations__:
            raise AttributeError(f"{name} is no member of the boundary")
        return getattr(self._core, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in ("disk_used", "wall_ms", "healthy", "first_position"):
            raise AttributeError(f"{name} is not set from outside")
        setattr(self._core, name, value)

    def take(self) -> Output:
        output = self._core.take()
        return Output([_sealed(one) for one in output.effects], [_sealed(one) for one in output.after_sync])

    def step(
        self,
        sender: ReplicaId,
        message: Sealed,
        now: float,
        metas: tuple[EntryMeta, ...] | list[EntryMeta] = (),
        data: bytes = b"",
    ) -> None:
        self._core.step(sender, message.inside, now, metas, data)

    def to_append(self, message: Sealed, metas: list[EntryMeta]) -> object:
        return self._core.to_append(message.inside, metas)

    def catch_up_message(self, term: int, metas: list[EntryMeta]) -> Sealed | None:
        message = self._core.catch_up_message(term, metas)
        return None if message is None else Sealed(message)

    def snapshot_message(self, term: int, snapshot: SnapshotMeta) -> Sealed:
        return Sealed(self._core.snapshot_message(term, snapshot))


def _sealed(effect: object) -> object:
    if isinstance(effect, SendMessage | SendEntries):
        return type(effect)(effect.to, Sealed(effect.message))
    return effect


def _encode(message: Sealed) -> bytes:
    return MARK + CODEC.encode(message.inside)


def _decode(data: bytes) -> Sealed:
    if not data.startswith(MARK):
        raise ValueError("no message of the foreign engine")
    return Sealed(CODEC.decode(data[len(MARK) :]))


FOREIGN = EngineKind("foreign", ForeignEngine, MessageCodec(_encode, _decode))
