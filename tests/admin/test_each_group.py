"""Questions to each broker group: the answers of some are shown while others are down."""

from __future__ import annotations

import pytest

from dledger_admin.operations.each_group import ask_each
from dledger_client import DeadlineError, RefusedError
from dledger_client.errors import refusal
from dledger_remoting.codes import ResponseCode
from dledger_remoting.errors import error_from_response


class Groups:
    """Administrator of two broker groups."""

    async def broker_groups(self) -> dict[str, None]:
        return {"broker-b": None, "broker-a": None}


async def test_what_one_group_says_is_shown_while_another_is_down() -> None:
    async def ask(name: str) -> int:
        if name == "broker-b":
            raise DeadlineError("no leader")
        return 7

    answers = await ask_each(Groups(), ask)
    assert answers.found == {"broker-a": 7}
    assert answers.unseen == ["broker group broker-b does not tell now: no leader"]


async def test_if_no_group_answers_the_error_is_raised() -> None:
    async def ask(_: str) -> int:
        raise DeadlineError("no leader")

    with pytest.raises(DeadlineError):
        await ask_each(Groups(), ask)


async def test_a_missing_right_is_an_error_whoever_else_answers() -> None:
    async def ask(name: str) -> int:
        if name == "broker-b":
            text = "User:app has no permission to access Cluster:c"
            raise refusal(error_from_response(ResponseCode.NO_PERMISSION, text, {}))
        return 7

    with pytest.raises(RefusedError, match="no permission"):
        await ask_each(Groups(), ask)
