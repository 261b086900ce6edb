"""Questions to each broker group, of which some may not answer: what the others say is shown all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import msgspec

from dledger_client import Admin, ClientError

from .access import is_person_unknown, is_right_refused

Answer = TypeVar("Answer")


class Answers(msgspec.Struct, Generic[Answer], frozen=True):
    """Answers by broker group, and a sentence for each group that did not answer."""

    found: dict[str, Answer]
    unseen: list[str]


async def ask_each(admin: Admin, ask: Callable[[str], Awaitable[Answer]]) -> Answers[Answer]:
    """Ask all registered broker groups at the same time.

    Raises the error of the first group if none answers, or if the account has no right to ask.
    """
    names = sorted(await admin.broker_groups())
    answers = await asyncio.gather(*(ask(name) for name in names), return_exceptions=True)
    result = Answers[Answer]({}, [])
    errors: list[ClientError] = []
    for name, answer in zip(names, answers, strict=True):
        if not isinstance(answer, BaseException):
            result.found[name] = answer
        elif isinstance(answer, ClientError) and not (is_right_refused(answer) or is_person_unknown(answer)):
            errors.append(answer)
            result.unseen.append(f"broker group {name} does not tell now: {answer}")
        else:
            raise answer
    if errors and not result.found:
        raise errors[0]
    return result
