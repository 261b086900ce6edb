"""Form of stored messages in answers: body, properties of the application, times."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from dledger_client import ReceivedMessage
from dledger_remoting.properties import RESERVED_NAMES

from .backend import queue_name
from .bodies import MessageView, TakenMessage
from .handles import Receipt, receipt_of

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS: Final = int((datetime.max.replace(tzinfo=UTC) - _EPOCH).total_seconds()) * 1000


class _Body(NamedTuple):
    """A body in one of its three forms."""

    text: str | UnsetType = UNSET
    base64: bytes | UnsetType = UNSET
    json: Raw | UnsetType = UNSET


def moment(timestamp_ms: int) -> datetime:
    """Return the time of ms since 1970. Producers may have set any number, so it is limited to the year 9999."""
    return _EPOCH + timedelta(milliseconds=min(max(timestamp_ms, 0), _LAST_MS))


def shown(message: ReceivedMessage, body_as: Literal["text", "base64", "json"]) -> MessageView:
    """Return a message as a tail shows it."""
    return MessageView(**_fields(message, body_as))


def shown_taken(
    group: str, topic: str, message: ReceivedMessage, body_as: Literal["text", "base64", "json"]
) -> TakenMessage:
    """Return a message as the group that has taken it gets it."""
    receipt = receipt_of(group, topic, message)
    return TakenMessage(
        **_fields(message, body_as),
        receipt=receipt.text,
        visible_again_at=visible_again_at(receipt),
        delivery_attempt=message.reconsume_times + 1,
    )


def visible_again_at(receipt: Receipt) -> datetime:
    """Return the end of a message's invisible time."""
    return moment(receipt.visible_again_ms)


def _fields(message: ReceivedMessage, body_as: Literal["text", "base64", "json"]) -> Mapping[str, Any]:
    body = _body(message.body, "base64" if message.fault is not None else body_as)
    return {
        "message_id": message.message_id,
        "queue": queue_name(message.queue),
        "offset": message.queue_offset,
        "born_at": moment(message.born_timestamp_ms),
        "stored_at": moment(message.stored_timestamp_ms),
        "text": body.text,
        "base64": body.base64,
        "json": body.json,
        "tag": UNSET if message.tags is None else message.tags,
        "keys": list(message.keys) or UNSET,
        "properties": {name: value for name, value in message.properties.items() if name not in RESERVED_NAMES},
        "fault": UNSET if message.fault is None else message.fault,
    }


def _body(body: bytes, body_as: Literal["text", "base64", "json"]) -> _Body:
    """Return a body in the wanted form, or in one that it has."""
    if body_as == "base64":
        return _Body(base64=body)
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return _Body(base64=body)
    if body_as == "json":
        try:
            # Written without line breaks, which would end an event of a tail. Numbers and texts stay as they are.
            return _Body(json=Raw(msgspec.json.format(body, indent=-1)))
        except (msgspec.MsgspecError, RecursionError):
            pass
    return _Body(text=text)
