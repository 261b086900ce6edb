"""Every check there is, by the name that its promise has in `docs/promises.md`."""

from __future__ import annotations

from typing import Final

from . import linearizability, order, reads, stored
from .base import Check

_MESSAGES: Final = frozenset({"append", "ordered", "consumers", "followers", "retention", "cpp"})

CHECKS: Final[tuple[Check, ...]] = (
    Check("lost", "an acknowledged message stays where it was stored, on every node", stored.lost, _MESSAGES),
    Check("phantom", "nothing is stored that nobody sent", stored.phantom, _MESSAGES),
    Check("refused", "what was refused as not stored is not stored", stored.refused, _MESSAGES),
    Check("duplicated", "what was sent once is stored once", stored.duplicated, _MESSAGES),
    Check("offset-given-twice", "no queue offset is given to two messages", stored.offset_given_twice, _MESSAGES),
    Check("gaps", "queue offsets have no gaps", stored.gaps, _MESSAGES),
    Check("torn-batch", "a batch is stored whole or not at all", stored.torn_batch, frozenset({"append"})),
    Check("reordered", "what is sent after an acknowledgement lies behind it", order.reordered, _MESSAGES),
    Check("two-values", "a queue offset holds one message for ever", reads.two_values, _MESSAGES),
    Check("unreadable", "an acknowledged message can be read at once", reads.unreadable, frozenset({"append"})),
    Check(
        "linearizable",
        "registers and logs behave like one copy",
        linearizability.linearizable,
        frozenset({"registers"}),
    ),
)
