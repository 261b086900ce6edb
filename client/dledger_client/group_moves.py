"""Moves of consumer groups: requests to broker groups that set a group's offsets, whether it has members or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.errors import RemotingError
from dledger_remoting.headers import encode_ext
from dledger_remoting.resets import AT_END, CloneOffsetHeader, ResetOffsetHeader, decode_reset

from .cluster_calls import ClusterCalls
from .errors import refusal
from .messages import MessageQueue
from .offsets import StartFrom

_NOT_SUPPORTED_CODES: Final = frozenset({int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)})
_FIRST_TIMESTAMP: Final = 0


async def reset_group(
    calls: ClusterCalls, group: str, topic: str, to: StartFrom, broker_groups: Sequence[str], queue_id: int = -1
) -> dict[MessageQueue, int] | None:
    """Move the group in a topic's queues and return its new offsets.

    Returns None if the version of a broker cannot notify the members. Other broker groups may have moved it by then.
    """
    timestamp = _FIRST_TIMESTAMP if to == "first" else AT_END if to == "last" else to
    header = encode_ext(ResetOffsetHeader(topic, group, timestamp, is_force=True, queue_id=queue_id))
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    answers = await calls.ask_leaders(broker_groups, code, header, accept=_NOT_SUPPORTED_CODES)
    if any(answer.code != ResponseCode.SUCCESS for answer in answers.values()):
        return None
    new_offsets: dict[MessageQueue, int] = {}
    try:
        for answer in answers.values():
            for queue, offset in decode_reset(bytes(answer.body)).items():
                new_offsets[MessageQueue(queue.topic, queue.broker_name, queue.queue_id)] = offset
    except RemotingError as error:
        raise refusal(error) from error
    return new_offsets


async def clone_group(calls: ClusterCalls, source: str, target: str, topic: str | None) -> None:
    """Give one group the offsets of another, on every broker group."""
    header = encode_ext(CloneOffsetHeader(source, target, topic or "", offline=True))
    await calls.ask_leaders(await calls.group_names(None), RequestCode.CLONE_GROUP_OFFSET, header)
