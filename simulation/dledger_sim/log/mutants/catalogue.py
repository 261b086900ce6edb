"""Catalogue of known bugs, with the way in which each is switched on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

Patch = tuple[type | ModuleType, str, object]
"""Class or module, the name to replace, and the replacement."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """Known bug: the promise that it breaks, the scenario that must catch it, and its patches.

    `schedule` is a schedule written for the bug, which fails with it. Seeds find some bugs rarely.
    """

    name: str
    breaks: str
    scenario: str
    patches: tuple[Patch, ...]
    schedule: Callable[[], None] | None = None

    def apply(self) -> None:
        """Put the bug permanently into this process."""
        for owner, name, replacement in self.patches:
            setattr(owner, name, replacement)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the bug to the code inside this context."""
        originals = [(owner, name, vars(owner)[name]) for owner, name, _ in self.patches]
        self.apply()
        try:
            yield
        finally:
            for owner, name, original in originals:
                setattr(owner, name, original)


class Catalogue(dict[str, Mutant]):
    """Mutants by name. They belong to the catalogue's scenario unless they name another."""

    def __init__(self, scenario: str) -> None:
        super().__init__()
        self._scenario = scenario

    def add(
        self,
        name: str,
        breaks: str,
        *patches: Patch,
        schedule: Callable[[], None] | None = None,
        scenario: str | None = None,
    ) -> None:
        """Add a mutant."""
        self[name] = Mutant(name, breaks, scenario or self._scenario, patches, schedule)
