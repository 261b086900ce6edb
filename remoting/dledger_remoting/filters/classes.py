"""Class filters, as RocketMQ 3 had them: a subscription names a class, and the filtering side has the code of that
name.

A client sends only a name. The name selects among the filters that the filtering side lists; it loads no code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from dledger_remoting.errors import SubscriptionParseFailed

MAX_NAME_CHARS: Final = 255
_is_name: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$.-]*", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True)
class ClassFilter:
    """A filter by the code that is listed as `name`."""

    name: str


def class_name(text: str) -> str:
    """Return the text if it is a class name, such as `com.example.Large`; else raise `SubscriptionParseFailed`."""
    if len(text) > MAX_NAME_CHARS or _is_name(text) is None:
        shown = text if len(text) <= MAX_NAME_CHARS else f"{text[:MAX_NAME_CHARS]}..."
        raise SubscriptionParseFailed(
            f"{shown!r} is no name of a class: at most {MAX_NAME_CHARS} letters, digits and _ $ . -, a letter first"
        )
    return text
