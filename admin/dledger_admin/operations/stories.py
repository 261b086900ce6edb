"""Stories of messages: what became of one, by its copies in the log and by the traces that clients wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from dledger_client import Admin, NoRouteError, NotFoundError, ReceivedMessage, RefusedError
from dledger_remoting.topics import TRACE_TOPIC, dead_letter_topic, is_dead_letter_topic
from dledger_remoting.traces import DeliveryTrace, HandlingTrace, Trace

from .access import is_right_refused
from .dead_letters import DEAD_LETTER_ID
from .traces import describe_details, describe_event

MAX_COPIES: Final = 32
"""Maximum number of copies in one topic, the newest ones, and of traces."""

MAX_GROUPS: Final = 16
"""Maximum number of groups whose dead letters are searched."""


class Event(msgspec.Struct, frozen=True):
    """Something that happened to a message, at a time in ms since 1970.

    `offset_message_id` names the copy that was stored, and is empty for what only a trace tells.
    """

    at_ms: int
    what: str
    group: str = ""
    details: str = ""
    offset_message_id: str = ""


async def tell(admin: Admin, message: ReceivedMessage) -> list[Event]:
    """Return what became of a message, the earliest first.

    Dead letters are searched of the groups that consume its topic. Copies and traces that are not kept any more, or
    that the account may not see, are left out.
    """
    consumers, traces = await asyncio.gather(_consumers(admin, message.topic), _traces(admin, message.message_id))
    groups = sorted({*consumers, *_groups_in(traces)})[:MAX_GROUPS]
    topics = [message.topic, *(dead_letter_topic(group) for group in groups)]
    copies = await asyncio.gather(*(_copies(admin, topic, message.message_id) for topic in topics))
    events = [_stored(copy) for found in copies for copy in found]
    if message.offset_message_id not in {event.offset_message_id for event in events}:
        events.append(_stored(message))
    events += (
        Event(trace.timestamp_ms, describe_event(trace), _group_of(trace, traces), describe_details(trace))
        for trace in traces
    )
    return sorted(events, key=lambda event: event.at_ms)


def _stored(copy: ReceivedMessage) -> Event:
    place = f"{copy.queue} at offset {copy.queue_offset}"
    what = "stored"
    if is_dead_letter_topic(copy.queue.topic):
        what = f"dead letter after {copy.reconsume_times} {'failure' if copy.reconsume_times == 1 else 'failures'}"
    elif DEAD_LETTER_ID in copy.properties:
        what = "dead letter sent again"
    return Event(copy.stored_timestamp_ms, what, "", place, copy.offset_message_id)


async def _consumers(admin: Admin, topic: str) -> list[str]:
    try:
        return await admin.topic_consumers(topic)
    except RefusedError as error:
        return _nothing(error)


async def _traces(admin: Admin, message_id: str) -> list[Trace]:
    try:
        return await admin.message_trace(message_id, topic=TRACE_TOPIC, max_messages=MAX_COPIES)
    except NoRouteError:
        return []
    except RefusedError as error:
        return _nothing(error)


async def _copies(admin: Admin, topic: str, message_id: str) -> list[ReceivedMessage]:
    try:
        return await admin.messages_by_key(
            topic, message_id, unique=True, max_messages=MAX_COPIES, keep_unreadable=True
        )
    except NoRouteError:
        return []
    except RefusedError as error:
        return _nothing(error)


def _nothing(error: RefusedError) -> list[Any]:
    """Return nothing for what is not there or the account may not see; raise any other refusal."""
    if isinstance(error, NotFoundError) or is_right_refused(error):
        return []
    raise error


def _groups_in(traces: Iterable[Trace]) -> set[str]:
    return {trace.group for trace in traces if isinstance(trace, DeliveryTrace | HandlingTrace) and trace.group}


def _group_of(trace: Trace, traces: Iterable[Trace]) -> str:
    """Return the group of a trace. That of a handling may stand in its delivery only."""
    if trace.group or not isinstance(trace, HandlingTrace):
        return trace.group
    deliveries = (one for one in traces if isinstance(one, DeliveryTrace))
    return next((one.group for one in deliveries if one.request_id == trace.request_id), "")
