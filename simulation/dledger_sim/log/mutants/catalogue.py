"""Catalogue of known bugs, with the way each one is switched on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

Patch = tuple[type | ModuleType, str, object]
"""Class or module, name of what is replaced, and by what."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug: the promise it breaks, the scenario that is to catch it, and what it replaces by what.

    `schedule` is a story written for it, which fails with it; seeds find some bugs rarely.
    """

    name: str
    breaks: str
    scenario: str
    patches: tuple[Patch, ...]
    schedule: Callable[[], None] | None = None

    def apply(self) -> None:
        """Put the bug into this process for good."""
        for owner, name, replacement in self.patches:
            setattr(owner, name, replacement)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The bug is in the code inside this context."""
        originals = [(owner, name, vars(owner)[name]) for owner, name, _ in self.patches]
        self.apply()
        try:
            yield
        finally:
            for owner, name, original in originals:
                setattr(owner, name, original)


class Catalogue(dict[str, Mutant]):
    """Mutants by name, for one scenario unless they say for which other one."""

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
        """List a mutant."""
        self[name] = Mutant(name, breaks, scenario or self._scenario, patches, schedule)
