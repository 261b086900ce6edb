"""Identity of a group: the founding it comes from, and the number of its rescues since.

Names of clusters and groups may be given twice, identities may not. As text it is the founding as 32 hex digits, a dot
and the number of the incarnation. Dot and number are left out for the first incarnation: `9f…3c`, `9f…3c.2`.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, NamedTuple, Self

from dledger_base.invariants import invariant

_DIGITS: Final = 32
_TEXT: Final = re.compile(rf"([0-9a-f]{{{_DIGITS}}})(?:\.([1-9][0-9]{{0,8}}))?")
_LABEL: Final = b"dledger group\0"


class GroupIdentity(NamedTuple):
    """Founding and incarnation of a group.

    `incarnation` counts from 1. Every rescue makes the next one, and no node of an earlier one may take part.
    """

    founding: str
    incarnation: int = 1

    @classmethod
    def founded_by(cls, incarnation: str) -> Self:
        """Return the identity of a group founded by a node with this incarnation, which is unique."""
        return cls(hashlib.sha256(_LABEL + incarnation.encode()).hexdigest()[:_DIGITS])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the identity in a text. Any other text counts as the identity of another group."""
        found = _TEXT.fullmatch(text)
        return cls(text) if found is None else cls(found[1], int(found[2] or 1))

    def rescued(self) -> GroupIdentity:
        """Return the identity of the next incarnation."""
        return GroupIdentity(self.founding, self.incarnation + 1)

    def precedes(self, other: GroupIdentity) -> bool:
        """Return whether the other identity is of a later incarnation of the same group."""
        return self.founding == other.founding and self.incarnation < other.incarnation

    def __str__(self) -> str:
        return self.founding if self.incarnation == 1 else f"{self.founding}.{self.incarnation}"


def tell_apart(found: str, expected: str) -> str:
    """Say why nodes of two groups with the same name do not belong together, and what to do."""
    invariant(found != expected, "the identities differ", identity=found)
    theirs, mine = GroupIdentity.parse(found), GroupIdentity.parse(expected)
    text = f"group identity {found} found, {expected} expected: "
    if theirs.founding != mine.founding:
        return text + (
            "the group was founded twice under the same name; stop the nodes of the one that is not wanted, and empty"
            " their directories to have them join the other one"
        )
    older = "the other node" if theirs.incarnation < mine.incarnation else "this node"
    return text + f"the group was rescued without {older}, whose directory has to be emptied before it can join again"
