"""Encoder of sends, used once per message, straight into a frame, and the results that their answers tell.

The header is RocketMQ's SEND_MESSAGE_V2 (310) or SEND_BATCH_MESSAGE (320) in JSON, with one letter per field
(`dledger_remoting.headers.SendMessageHeader`). It also has `noForward`, so that a node that does not lead says so at
once. Only a one-way send may be forwarded, because it is never repeated. Numbers are JSON numbers, which every broker
reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dledger_remoting.codes import PROTOCOL_VERSION, LanguageCode, RequestCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, encode_command
from dledger_remoting.frame import SerializeType, join_frame
from dledger_remoting.headers import SendMessageResponseHeader
from dledger_remoting.signatures import Credentials, signed
from dledger_remoting.topics import AUTO_CREATE_TOPIC, DEFAULT_TOPIC_QUEUES

from ..results import SendResult


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A message or batch in the form of the wire, for any queue.

    `properties` is the property text; `unique_keys` has one key per message. `idempotent` asks the broker group to
    answer a repetition as it answered the first send. `flag` is the application's own number, which other clients can
    set. `fields` are further ext fields, such as those of a `dledger_remoting.speech`.
    """

    topic: str
    body: bytes
    properties: str
    sys_flag: int
    born_timestamp_ms: int
    unique_keys: tuple[str, ...]
    is_batch: bool = False
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    idempotent: bool = False
    flag: int = 0
    fields: Mapping[str, str] | None = None

    @property
    def size_bytes(self) -> int:
        """Size that counts against the limit of bytes in flight."""
        return len(self.body) + len(self.properties)


class _SendFields(msgspec.Struct, gc=False):
    a: str
    b: str
    c: str
    d: int
    e: int
    f: int
    g: int
    h: int
    i: str
    j: int
    k: bool
    m: bool
    noForward: str | msgspec.UnsetType  # noqa: N815 (wire name)
    l: int | msgspec.UnsetType = msgspec.UNSET  # noqa: E741
    idempotent: str | msgspec.UnsetType = msgspec.UNSET


class _SendCommand(msgspec.Struct, gc=False):
    """A send command. `code` is first, because brokers use it to recognise a send without parsing."""

    code: int
    extFields: _SendFields  # noqa: N815 (wire name)
    flag: int
    language: str
    opaque: int
    version: int


_encode: Final = msgspec.json.Encoder().encode
_LANGUAGE: Final = LanguageCode.PYTHON.name


def send_frame(
    outgoing: Outgoing,
    producer_group: str,
    queue_id: int,
    opaque: int,
    *,
    oneway: bool = False,
    credentials: Credentials | None = None,
) -> bytes:
    """Return the frame that sends `outgoing` to a queue, signed for the account of `credentials`."""
    fields = _SendFields(
        a=producer_group,
        b=outgoing.topic,
        c=AUTO_CREATE_TOPIC,
        d=DEFAULT_TOPIC_QUEUES,
        e=queue_id,
        f=outgoing.sys_flag,
        g=outgoing.born_timestamp_ms,
        h=outgoing.flag,
        i=outgoing.properties,
        j=outgoing.reconsume_times,
        k=False,
        m=outgoing.is_batch,
        noForward=msgspec.UNSET if oneway else "true",
        l=msgspec.UNSET if outgoing.max_reconsume_times is None else outgoing.max_reconsume_times,
        idempotent="true" if outgoing.idempotent else msgspec.UNSET,
    )
    code = RequestCode.SEND_BATCH_MESSAGE if outgoing.is_batch else RequestCode.SEND_MESSAGE_V2
    if credentials is not None or outgoing.fields:
        flag = FLAG_ONEWAY if oneway else 0
        return _general_frame(int(code), fields, outgoing.fields or {}, outgoing.body, flag, opaque, credentials)
    header = _encode(_SendCommand(int(code), fields, FLAG_ONEWAY if oneway else 0, _LANGUAGE, opaque, PROTOCOL_VERSION))
    return join_frame(SerializeType.JSON, header, outgoing.body)


def _general_frame(
    code: int,
    fields: _SendFields,
    others: Mapping[str, str],
    body: bytes,
    flag: int,
    opaque: int,
    credentials: Credentials | None,
) -> bytes:
    """Return the frame with further fields, or signed, with every value in the form of the text that is signed."""
    own = {name: _format_value(value) for name, value in msgspec.to_builtins(fields).items()}
    ext = {**own, **others}
    command = RemotingCommand(code, opaque=opaque, flag=flag, language=LanguageCode.PYTHON, body=body)
    command.ext = ext if credentials is None else signed(ext, body, credentials)
    return encode_command(command)


def _format_value(value: str | bool | int) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def results_in(
    outgoing: Outgoing,
    broker_group: str,
    placement: SendMessageResponseHeader,
    *,
    replicated: bool,
    maybe_stored: bool = False,
) -> list[SendResult]:
    """Return one result per message of a request; a batch's messages have consecutive queue offsets.

    `maybe_stored` says that an earlier attempt had an unknown outcome.
    """
    is_known = outgoing.idempotent and (placement.repeated or placement.remembered is not False)
    offset_ids = placement.msg_id.split(",")
    return [
        SendResult(
            unique_key,
            offset_ids[index] if index < len(offset_ids) else "",
            outgoing.topic,
            broker_group,
            placement.queue_id,
            placement.queue_offset + index,
            replicated,
            placement.recall_handle,
            placement.remembered,
            bool(placement.repeated),
            maybe_stored and not is_known,
        )
        for index, unique_key in enumerate(outgoing.unique_keys)
    ]
