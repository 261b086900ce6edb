"""Operations of a history, as clients saw them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final


class _Unknown:
    def __repr__(self) -> str:
        return "unknown"


UNKNOWN: Final = _Unknown()
"""The answer of an operation whose end was not seen."""


@dataclass(frozen=True, slots=True)
class Call:
    """One operation: its request, its answer, and the times of both in any unit. `id` is chosen by the caller.

    `argument` and `answer` are hashable. `returned` is None if the end was not seen; `answer` is `UNKNOWN` then.
    """

    id: int
    f: str
    argument: Hashable
    answer: Hashable
    called: int
    returned: int | None

    def __str__(self) -> str:
        request = self.f if self.argument is None else f"{self.f}({self.argument})"
        return f"{request} -> {'?' if self.returned is None else self.answer} [{self.id}]"
