"""Suggestions for a wrong name: the nearest few that exist, instead of a list of all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import Final

MAX_NAMES: Final = 3
"""Maximum number of names in a suggestion."""
_MARGIN: Final = 0.2
"""Maximum difference of a name's likeness, from 0 to 1, to that of the nearest one."""
_MAX_COMPARED: Final = 2000
"""Maximum number of names that are compared. More take more than a blink: about 20 µs each."""


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Return the names that are most similar, the nearest first, at most `MAX_NAMES`.

    Of very many names, those with the same first letter are compared.
    """
    known = list(names)
    if len(known) > _MAX_COMPARED:
        known = [one for one in known if one[:1].casefold() == name[:1].casefold()][:_MAX_COMPARED]
    by_lower = {one.casefold(): one for one in reversed(known)}
    near = get_close_matches(name.casefold(), by_lower, n=MAX_NAMES)
    likeness = [SequenceMatcher(a=name.casefold(), b=one).ratio() for one in near]
    return [by_lower[one] for one, ratio in zip(near, likeness, strict=True) if ratio >= likeness[0] - _MARGIN]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question with the nearest names, as the end of a text that it closes with a dot; "" if none is near."""
    found = nearest(name, names)
    return f". Did you mean {either(found)}?" if found else ""


def either(names: Sequence[str]) -> str:
    """Return names, quoted, with "or" before the last."""
    *others, last = [repr(name) for name in names]
    return f"{', '.join(others)} or {last}" if others else last


def some_of(names: Iterable[str]) -> str:
    """Return the first names of a list, with the number of the others, as an end of "there are"."""
    known = list(names)
    shown = ", ".join(known[:MAX_NAMES])
    return f"{shown} and {len(known) - MAX_NAMES} more" if len(known) > MAX_NAMES else shown
