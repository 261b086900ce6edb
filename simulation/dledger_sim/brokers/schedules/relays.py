"""Schedules of requests to clients whose answers cross."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dledger_broker.clients.relay import Answer, Outcome, Relay
from dledger_broker.clients.tables import LocalClients, MergedClients
from dledger_broker.config import BrokerConfig
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.testing import FakeEnvironment
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import FLAG_RESPONSE, RemotingCommand
from dledger_remoting.heartbeat import HeartbeatData, ProducerData
from dledger_remoting.hosts import HostAddress

NODE: Final = "n0"
NUMBER: Final = 1
"""Number of the first request over every connection."""


class _Client:
    """Client's connection, which carries a single request."""

    serialize_type = 0
    wants_leader_notices = False

    def __init__(self, key: str) -> None:
        self.key = key
        self.address = HostAddress("10.0.0.1", 40000)
        self.client_ids: set[str] = set()

    def push(self, code: int, ext: dict[str, str], body: bytes = b"", *, oneway: bool = True) -> int:
        """Return the number of the request."""
        _ = code, ext, body, oneway
        return NUMBER


def answers_of_two_clients() -> None:
    """Check that an answer counts for its own client, although another client was asked under the same number.

    Seeds hardly meet this: two clients of one node must be asked at the same time, over connections with equal request
    numbers. They must then answer in the opposite order.
    """
    env = FakeEnvironment()
    local = LocalClients(lambda _clients, _groups: None)
    config = BrokerConfig(broker_group="b", node_id=NODE, data_dir=Path("unused"))
    relay = Relay(env, NODE, local, MergedClients(NODE, local.index), config, BrokerCounters(), Access())
    told: dict[str, list[Outcome]] = {"a": [], "b": []}
    for name, outcomes in told.items():
        heartbeat = HeartbeatData(name, [ProducerData("PG")], [])
        local.heartbeat(_Client(f"connection of {name}"), heartbeat, 0, 479, env.now())
        relay.call(name, RequestCode.GET_CONSUMER_RUNNING_INFO, {}, b"", 3.0, outcomes.append)
    env.advance(0.1)
    for name in reversed(told):
        answer = RemotingCommand(0, NUMBER, FLAG_RESPONSE, body=name.encode())
        relay.take_answer(f"connection of {name}", answer)
        env.advance(0.1)
    for name, outcomes in told.items():
        assert outcomes == [Answer(0, "", {}, name.encode())], f"{name} has another client's answer"


RELAY_SCHEDULES: Final = (answers_of_two_clients,)
