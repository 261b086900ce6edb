"""Lag of a group in seconds: which topics are asked for, and what is left out."""

from __future__ import annotations

import pytest

from dledger_admin.operations import consumer_groups
from dledger_admin.operations.consumer_groups import MAX_DELAY_QUEUES, Lag, delays, lag_in
from dledger_client import MessageQueue, NoRouteError, RefusedError
from dledger_client.errors import refusal
from dledger_remoting.codes import ResponseCode
from dledger_remoting.errors import error_from_response


class Admin:
    """Administrator that knows how long messages wait in some topics, and refuses others."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def delays(self, group: str, topic: str) -> dict[MessageQueue, float]:
        assert group == "g"
        self.asked.append(topic)
        match topic:
            case "gone":
                raise NoRouteError(topic, "deleted")
            case "secret":
                text = "User:app has no permission to access Topic:secret"
                raise refusal(error_from_response(ResponseCode.NO_PERMISSION, text, {}))
            case "broken":
                raise refusal(error_from_response(ResponseCode.SYSTEM_ERROR, "broken", {}))
        return {MessageQueue(topic, "b", 0): 3.5}


def queues(topic: str, lag: int, count: int = 1) -> dict[MessageQueue, int]:
    return {MessageQueue(topic, "b", number): lag for number in range(count)}


async def test_only_topics_with_a_lag_are_asked_for_and_what_cannot_be_told_is_left_out() -> None:
    admin = Admin()
    lags = queues("t", 2) | queues("read", 0) | queues("gone", 1) | queues("secret", 1)
    found = await delays(admin, "g", lags)
    assert admin.asked == ["gone", "secret", "t"]
    assert found == {MessageQueue("t", "b", 0): 3.5}
    assert lag_in(lags, found) == Lag(4, 3.5)
    assert lag_in(queues("gone", 1), found) == Lag(1, None)
    assert lag_in(queues("t", 0), {}) == Lag(0, 0.0)


async def test_a_topic_with_very_many_queues_is_not_asked_for() -> None:
    admin = Admin()
    assert await delays(admin, "g", queues("huge", 1, MAX_DELAY_QUEUES + 1)) == {}
    assert admin.asked == []


async def test_another_refusal_is_an_error() -> None:
    with pytest.raises(RefusedError, match="broken"):
        await consumer_groups.delays(Admin(), "g", queues("broken", 1))
