"""`dledger group create --retry-delays`: the retry policy that a group gets."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from command_fakes import FakeAdmin, dledger, use_fakes

from dledger_admin.cli import main
from dledger_remoting.retry_policies import CustomizedRetryPolicy, GroupRetryPolicy
from dledger_remoting.topics import SubscriptionGroupConfig


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[SubscriptionGroupConfig]:
    """The groups that are made."""
    use_fakes(monkeypatch)
    groups: list[SubscriptionGroupConfig] = []

    async def create_group(_self: FakeAdmin, config: SubscriptionGroupConfig) -> None:
        groups.append(config)

    monkeypatch.setattr(FakeAdmin, "create_group", create_group)
    return groups


def test_a_failed_message_waits_as_long_as_is_said(made: list[SubscriptionGroupConfig]) -> None:
    dledger("group", "create", "audit", "--retry-delays", "10s 1m")
    [config] = made
    assert isinstance(config.group_retry_policy, GroupRetryPolicy)
    policy = config.group_retry_policy.chosen
    assert isinstance(policy, CustomizedRetryPolicy)
    assert [policy.delay_ms(times) for times in (0, 1, 2, 9)] == [10_000, 60_000, 60_000, 60_000]


def test_levels_are_what_brokers_take_for_no_policy(made: list[SubscriptionGroupConfig]) -> None:
    dledger("group", "create", "audit", "--retry-delays", "levels")
    dledger("group", "create", "audit")
    policies = [config.group_retry_policy for config in made]
    assert isinstance(policies[0], GroupRetryPolicy)
    assert (policies[0].is_default, isinstance(policies[1], GroupRetryPolicy)) == (True, False)


@pytest.mark.parametrize("text", ["", "soon", "0s", "10"])
def test_what_is_no_delay_is_refused(text: str) -> None:
    result = CliRunner().invoke(main, ["group", "create", "audit", "--retry-delays", text])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--retry-delays" in result.stderr
