"""Handlers of a group's messages: taking them, and the end of each by `ack`, `nack` or `extend`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

from aiohttp import web

from dledger_client import ClientError, Filter, ReceivedMessage, Sql
from dledger_remoting.filters.tags import SUBSCRIBE_ALL

from .backend import BusyError, Subscription
from .bodies import (
    AckRequest,
    ExtendRequest,
    NackRequest,
    ReceiveAnswer,
    ReceiveRequest,
    SettleAnswer,
    Settled,
)
from .calls import Call, answered
from .handles import Receipt, open_receipt
from .problems import Kind, ProblemError, problem_of
from .reading import decoded, topic_of
from .showing import shown_taken, visible_again_at

_Settle = Callable[[Receipt], Awaitable[Settled]]

DONE: Final = "done"
GONE: Final = "gone"


def filter_of(tags: str, sql: str | None) -> Filter:
    """Return the filter of a request. Raises `ProblemError` for one by tags and one by properties."""
    if sql is None:
        return tags
    if tags != SUBSCRIBE_ALL:
        raise ProblemError(Kind.INVALID, "filter and sql: give one of them; in SQL the tag is the property TAGS")
    return Sql(sql)


async def receive(call: Call) -> web.StreamResponse:
    """Take messages, and write them. They go back to the group if the caller is gone by then."""
    topic = topic_of(call.request)
    request: ReceiveRequest = decoded(call.body, ReceiveRequest)
    subscription = Subscription(
        request.group,
        topic,
        filter_of(request.filter, request.sql),
        request.invisible_seconds,
        request.start == "first",
    )
    async with AsyncExitStack() as stack:
        taking = call.front.backend.receive(call.caller, subscription, request.max, request.wait_seconds)
        nothing: Sequence[ReceivedMessage] = ()
        messages = await call.front.unless_stopped(stack.enter_async_context(taking), nothing)
        taken = [shown_taken(request.group, topic, message, request.body_as) for message in messages]
        response = answered(ReceiveAnswer(taken))
        # Written here, and not after the return: only within the block can an error give the messages back.
        with call.front.limits.answers.share(response.content_length or 0):
            await response.prepare(call.request)
            await response.write_eof()
        call.front.metrics.messages.labels("out").inc(len(messages))
    return response


async def ack(call: Call) -> web.StreamResponse:
    """Acknowledge messages."""
    request: AckRequest = decoded(call.body, AckRequest)

    async def settle(receipt: Receipt) -> Settled:
        is_done = await call.front.backend.ack(call.caller, receipt)
        return Settled(receipt.text, DONE if is_done else GONE)

    return await _settle_all(call, request.group, request.receipts, settle)


async def nack(call: Call) -> web.StreamResponse:
    """Have messages delivered again. Their receipts end, and nobody needs the ones that replace them."""
    request: NackRequest = decoded(call.body, NackRequest)

    async def settle(receipt: Receipt) -> Settled:
        changed = await call.front.backend.hide(call.caller, receipt, request.delay_seconds)
        if changed is None:
            return Settled(receipt.text, GONE)
        return Settled(receipt.text, DONE, visible_again_at=visible_again_at(changed))

    return await _settle_all(call, request.group, request.receipts, settle)


async def extend(call: Call) -> web.StreamResponse:
    """Keep messages hidden for longer."""
    request: ExtendRequest = decoded(call.body, ExtendRequest)

    async def settle(receipt: Receipt) -> Settled:
        changed = await call.front.backend.hide(call.caller, receipt, request.invisible_seconds)
        if changed is None:
            return Settled(receipt.text, GONE)
        return Settled(receipt.text, DONE, next_receipt=changed.text, visible_again_at=visible_again_at(changed))

    return await _settle_all(call, request.group, request.receipts, settle)


async def _settle_all(call: Call, group: str, texts: Sequence[str], settle: _Settle) -> web.StreamResponse:
    """Settle all receipts at once, and answer with one result for each.

    If one fails, the answer is its problem, with the results of all: what is done is done.
    """
    topic = topic_of(call.request)
    receipts = [open_receipt(text, group, topic) for text in texts]
    if len(set(receipts)) < len(receipts):
        raise ProblemError(Kind.INVALID, "receipts: one is there twice")
    outcomes = await asyncio.gather(*(settle(receipt) for receipt in receipts), return_exceptions=True)
    results: list[Settled] = []
    failure: ProblemError | None = None
    for receipt, outcome in zip(receipts, outcomes, strict=True):
        if not isinstance(outcome, BaseException):
            results.append(outcome)
            continue
        if not isinstance(outcome, ClientError | BusyError):
            raise outcome
        problem = problem_of(outcome)
        results.append(Settled(receipt.text, "failed", detail=str(outcome)))
        failure = failure or problem
    if failure is not None:
        raise failure.with_results(results)
    return answered(SettleAnswer(results))
