"""`dledger group create --retry-delays` sets the retry policy of a group."""

from __future__ import annotations

import pytest
from command_fakes import FakeAdmin, dledger, refused, use_fakes

from dledger_remoting.retry_policies import CustomizedRetryPolicy, GroupRetryPolicy
from dledger_remoting.topics import SubscriptionGroupConfig


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[SubscriptionGroupConfig]:
    """Return a list that gets the created groups."""
    use_fakes(monkeypatch)
    groups: list[SubscriptionGroupConfig] = []

    async def create_group(_self: FakeAdmin, config: SubscriptionGroupConfig) -> None:
        groups.append(config)

    monkeypatch.setattr(FakeAdmin, "create_group", create_group)
    return groups


def test_retry_delays_set_the_waiting_times_of_failed_messages(made: list[SubscriptionGroupConfig]) -> None:
    for delays in (("--retry-delays", "10s 1m"), ("--retry-delays", "levels"), ()):
        dledger("group", "create", "audit", *delays)
    own, levels, default = [config.group_retry_policy for config in made]
    assert isinstance(own, GroupRetryPolicy)
    assert isinstance(own.chosen, CustomizedRetryPolicy)
    assert [own.chosen.delay_ms(times) for times in (0, 1, 2, 9)] == [10_000, 60_000, 60_000, 60_000]
    assert isinstance(levels, GroupRetryPolicy)
    assert (levels.is_default, isinstance(default, GroupRetryPolicy)) == (True, False)


@pytest.mark.parametrize("text", ["", "soon", "0s", "10"])
def test_invalid_retry_delays_are_refused(text: str) -> None:
    assert "--retry-delays" in refused("group", "create", "audit", "--retry-delays", text, code=2)
