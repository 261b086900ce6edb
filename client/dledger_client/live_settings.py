"""Live settings: keys of brokers' configuration that are set for whole broker groups while their nodes run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import InvalidParameter

from .cluster_calls import ClusterCalls
from .errors import InvalidArgumentError, refusal

_LIVE_FIELD: Final = "dledgerLive"


async def live_settings(calls: ClusterCalls, broker_groups: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the live settings by broker group.

    Raises `RefusedError`, for example from brokers without live settings.
    """
    answers = await calls.ask_leaders(broker_groups, RequestCode.GET_BROKER_CONFIG, {})
    settings: dict[str, dict[str, str]] = {}
    for name, answer in answers.items():
        text = (answer.ext or {}).get(_LIVE_FIELD, "{}")
        try:
            settings[name] = msgspec.json.decode(text, type=dict[str, str])
        except msgspec.MsgspecError as error:
            raise refusal(InvalidParameter(f"{_LIVE_FIELD} of {name} cannot be read: {error}")) from error
    return settings


async def set_live(calls: ClusterCalls, values: Mapping[str, str], broker_groups: Sequence[str]) -> None:
    """Have the leaders change settings.

    Raises `InvalidArgumentError` for a key or value that does not fit a line of the request.
    """
    for key, text in values.items():
        if not key.strip() or "=" in key or any("\n" in part or "\r" in part for part in (key, text)):
            raise InvalidArgumentError(f"setting {key!r} = {text!r}, expected a key and a value of one line each")
    body = "".join(f"{key}={text}\n" for key, text in values.items()).encode()
    await calls.ask_leaders(broker_groups, RequestCode.UPDATE_BROKER_CONFIG, {}, body)
