"""Judgement of a check: what it found, and whether that is enough for a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

EXAMPLES: Final = 10
"""Maximum number of examples of a judgement."""

Result: TypeAlias = Literal["valid", "invalid", "unknown"]
"""`unknown`: the recorded data does not suffice for a verdict. It counts as a failure."""


@dataclass(slots=True)
class Findings:
    """Collects violations of a promise, and reasons for which it cannot be judged."""

    violations: int = 0
    examples: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def violation(self, example: str) -> None:
        """Note that the promise is broken, with an example."""
        self.violations += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(example)

    def doubt(self, reason: str) -> None:
        """Note a reason why the verdict must be unknown."""
        self.doubts.append(reason)

    def judged(self, checked: int, what: str, **figures: float | str) -> Judgement:
        """Return the judgement on `checked` things called `what`. It is unknown if nothing was checked."""
        figures = {"checked": checked, **figures}
        if self.violations:
            return Judgement("invalid", f"{self.violations:,} violations in {checked:,} {what}", self.examples, figures)
        if self.doubts:
            return Judgement("unknown", self.doubts[0], self.doubts[:EXAMPLES], figures)
        if not checked:
            return Judgement("unknown", f"no {what} to check", (), figures)
        return Judgement("valid", f"{checked:,} {what}", (), figures)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A checker's answer; `Check` adds its name and its promise."""

    result: Result
    summary: str
    examples: Iterable[str] = ()
    figures: Mapping[str, int | float | str] = field(default_factory=dict)
