"""Pulls that wait, and pulls with filters."""

from __future__ import annotations

from typing import NoReturn

from served_broker import FakeClient, pull_ext, submit

from dledger.errors import TrimmedError
from dledger_remoting.command import RemotingCommand
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, SubscriptionData


def sql(expression: str, **fields: str) -> dict[str, str]:
    """Return the fields of a pull by an expression."""
    return {"subscription": expression, "expressionType": "SQL92", **fields}


def held_pull(client: FakeClient, queue_id: int = 0, *, ms: int = 5_000, **fields: str) -> int:
    """Send a pull that may wait `ms` milliseconds, and return its opaque."""
    return submit(client, 11, pull_ext("T1", queue_id, sysFlag="6", suspendTimeoutMillis=str(ms), **fields))


def position(answer: RemotingCommand) -> tuple[int, str]:
    """Return the code of an answer, and where its reader goes on."""
    return answer.code, answer.ext["nextBeginOffset"]


def beat(client: FakeClient, expression: str = "*", *, kind: str = "TAG", version: int = 7) -> None:
    """Send a heartbeat of a consumer of T1."""
    subscription = SubscriptionData("T1", expression, sub_version=version, expression_type=kind)
    heartbeat = HeartbeatData("c1", [], [ConsumerData("CG", subscription_data_set=[subscription])])
    broker = client.broker
    broker.service.gossip.local.heartbeat(client, heartbeat, 0, 479, broker.memory.env.now())
    broker.settle()


def trimmed(*_: object) -> NoReturn:
    """Read records that are trimmed."""
    raise TrimmedError("the log starts behind the first of them")
