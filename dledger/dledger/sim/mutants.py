"""Known bugs, to be switched on one by one: a simulator that does not catch them proves nothing.

Each is a patch of small functions of the real code, undone afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dledger.core.messages import Heartbeat
from dledger.core.raft import Raft
from dledger.types import Role

Patches = list[tuple[type, str, object]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug: the promise it breaks, and the functions it replaces."""

    name: str
    breaks: str
    patches: Callable[[], Patches]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The bug is in the code inside this context."""
        patches = self.patches()
        originals = [(owner, name, owner.__dict__[name]) for owner, name, _ in patches]
        for owner, name, replacement in patches:
            setattr(owner, name, replacement)
        try:
            yield
        finally:
            for owner, name, original in originals:
                setattr(owner, name, original)


MUTANTS: dict[str, Mutant] = {}


def mutant(name: str, breaks: str) -> Callable[[Callable[[], Patches]], Callable[[], Patches]]:
    """Register a mutant."""

    def register(patches: Callable[[], Patches]) -> Callable[[], Patches]:
        MUTANTS[name] = Mutant(name, breaks, patches)
        return patches

    return register
