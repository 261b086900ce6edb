"""Request for lines of a node's audit log (20032), which RocketMQ does not have."""

from __future__ import annotations

from typing import Final

import msgspec

MAX_LINES: Final = 500
"""Maximum number of lines in an answer."""


class AuditHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks for the newest lines, for those that contain `word` if it is not empty, whatever their case."""

    max_lines: int = MAX_LINES
    word: str = ""


class AuditLine(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A change: when (UTC, in ISO 8601), by which account, from which address, by which request, and the outcome.

    `before` and `after` are the state of the changed object as JSON, empty without one. `untold` counts the lines of
    this account that were left out before this one.
    """

    time: str
    who: str
    address: str
    what: str
    outcome: str
    before: str = ""
    after: str = ""
    untold: int = 0


class AuditLines(msgspec.Struct, frozen=True, rename="camel"):
    """Answer to 20032: the node that answers, and its lines, the newest first."""

    node_id: str
    lines: list[AuditLine]
