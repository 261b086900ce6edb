"""Operations of a history, as clients saw them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final


class _Unknown:
    def __repr__(self) -> str:
        return "unknown"


UNKNOWN: Final = _Unknown()
"""The answer of an operation whose end nobody saw."""


@dataclass(frozen=True, slots=True)
class Call:
    """One operation: what was asked, what was answered, and when, in any unit. `id` is the caller's name for it.

    `argument` and `answer` are hashable. `returned` is None if the end was not seen; `answer` is `UNKNOWN` then.
    """

    id: int
    f: str
    argument: Hashable
    answer: Hashable
    called: int
    returned: int | None

    def __str__(self) -> str:
        asked = self.f if self.argument is None else f"{self.f}({self.argument})"
        return f"{asked} -> {'?' if self.returned is None else self.answer} [{self.id}]"
