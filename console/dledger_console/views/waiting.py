"""Delayed and transactional messages: what waits and until when, recalls, halves and their checks."""

from __future__ import annotations

from typing import Final

import msgspec

from dledger_admin.operations import waiting
from dledger_admin.operations.waiting import Delayed, Half, Recalled

from ..pages import AnyChange, AnyLook, Call, Change, Look

DELAYED: Final = "/delayed"


class Wanted(msgspec.Struct, frozen=True):
    """Parameters of the list of delayed messages: those that are due after a time, and whose topic has some letters."""

    q: str = ""
    after_ms: int = -1


class DelayedPage(msgspec.Struct, frozen=True):
    """The delayed messages that are due next. `next_ms` begins the next page, None on the last one."""

    messages: list[Delayed]
    pending: int
    next_ms: int | None
    unseen: list[str]


class Filtered(msgspec.Struct, frozen=True):
    """Parameters of the list of transactions: letters that the topic or the producer group must have."""

    q: str = ""


class Transactions(msgspec.Struct, frozen=True):
    """The oldest open transactions that match. `pending` counts all that are open."""

    halves: list[Half]
    pending: int
    unseen: list[str]


class Recall(msgspec.Struct, frozen=True):
    """The handle of a delayed message that is not to be delivered."""

    handle: str


async def list_delayed(call: Call, wanted: Wanted) -> DelayedPage:
    """Return the delayed messages that are due next."""
    found = await waiting.delayed(call.admin, wanted.after_ms)
    letters = wanted.q.strip().casefold()
    shown = [one for one in found.messages if letters in one.topic.casefold()]
    is_full = len(found.messages) >= waiting.MAX_SHOWN
    return DelayedPage(shown, found.pending, found.messages[-1].due_ms if is_full else None, found.unseen)


async def list_halves(call: Call, wanted: Filtered) -> Transactions:
    """Return the oldest open transactions that match."""
    found = await waiting.halves(call.admin)
    letters = wanted.q.strip().casefold()
    shown = [one for one in found.halves if letters in f"{one.topic} {one.producer_group}".casefold()]
    return Transactions(shown, found.pending, found.unseen)


async def what_recalling_does(_: Call, wanted: Recall) -> list[str]:
    """Return which message is never delivered."""
    return waiting.what_recalling_does(wanted.handle)


async def recall(call: Call, wanted: Recall) -> Recalled:
    """Recall a delayed message."""
    return await waiting.recall(call.access, wanted.handle)


def _told(_: Recall, done: Recalled) -> str:
    return f"Message {done.unique_key} of topic {done.topic} is recalled: it is never delivered."


LOOKS: Final[list[AnyLook]] = [
    Look(
        path=DELAYED,
        summary="Delayed messages: what waits, and until when.",
        wanted=Wanted,
        answer=list_delayed,
        template="delayed.html",
        section="delayed",
        is_live=True,
    ),
    Look(
        path="/transactions",
        summary="Transactions without an outcome, and their checks.",
        wanted=Filtered,
        answer=list_halves,
        template="transactions.html",
        section="transactions",
        is_live=True,
    ),
]
CHANGES: Final[list[AnyChange]] = [
    Change(
        path="/change/recall",
        summary="Recall a delayed message",
        wanted=Recall,
        effects=what_recalling_does,
        act=recall,
        told=_told,
        after=lambda _: DELAYED,
        section="delayed",
    ),
]
