"""Quotas of accounts and topics: limits on sends per second."""

from __future__ import annotations

from collections.abc import Sequence

from dledger_remoting.bodies import encode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.quotas import Quota, QuotaList, QuotaRow

from .cluster_calls import ClusterCalls, decode


async def put_quota(calls: ClusterCalls, quota: Quota, broker_groups: Sequence[str]) -> None:
    """Have the leaders set a quota, or remove it if it has no limit."""
    await calls.ask_leaders(broker_groups, RequestCode.PUT_QUOTA, {}, encode_body(quota))


async def quotas(calls: ClusterCalls, broker_groups: Sequence[str]) -> dict[str, list[QuotaRow]]:
    """Return the quotas by broker group."""
    answers = await calls.ask_leaders(broker_groups, RequestCode.LIST_QUOTAS, {})
    return {name: decode(QuotaList, answer.body).quotas for name, answer in answers.items()}
