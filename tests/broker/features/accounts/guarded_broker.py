"""Broker with access control, and clients that sign."""

import json
from pathlib import Path
from typing import Final

from served_broker import FakeClient, ServedBroker, make_served_broker

from dledger.statemachine import Leadership
from dledger_broker.config import BrokerConfig
from dledger_broker.features.accounts.sealing import read_key_file
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.node import NODE_ID
from dledger_remoting.accounts import ROOT
from dledger_remoting.command import RemotingCommand
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.signatures import Credentials, signed
from tests.access_keys import KEY_FILE

KEYS: Final = read_key_file(KEY_FILE)
ROOT_CREDENTIALS: Final = Credentials(ROOT, KEYS.root_secrets[0])
CREATE_USER, UPDATE_USER, DELETE_USER, GET_USER, LIST_USERS = range(3001, 3006)
CREATE_ACL, UPDATE_ACL, DELETE_ACL, GET_ACL, LIST_ACLS = range(3006, 3011)

CONFIG: Final = BrokerConfig(
    broker_group="broker-a",
    node_id=NODE_ID,
    data_dir=Path("unused"),
    access_key_file=KEY_FILE,
    max_message_bytes=64 << 10,
)
PRODUCING: Final = b'{"clientID":"c","producerDataSet":[{"groupName":"PG"}]}'
"""Heartbeat of a producer."""


def guarded_broker(memory: BrokerInMemory | None = None, config: BrokerConfig = CONFIG) -> ServedBroker:
    """Return a broker with access control that leads, has topics T1 and T2, and has no account."""
    broker = make_served_broker(config, memory or BrokerInMemory())
    for topic in ("T1", "T2"):
        broker.memory.create_topic(topic)
    return broker


def credentials(name: str) -> Credentials:
    return Credentials(name, f"secret-of-{name}")


def call(
    client: FakeClient, who: Credentials | None, code: int, ext: dict[str, str] | None = None, body: bytes = b""
) -> RemotingCommand:
    """Return the answer to a request of an account."""
    ext = ext or {}
    return client.call(code, ext if who is None else signed(ext, body, who), body)


def as_root(broker: ServedBroker, code: int, ext: dict[str, str], body: object = None) -> RemotingCommand:
    """Return the answer to a request that the key file signs. The answer must not be a refusal."""
    text = b"" if body is None else json.dumps(body).encode()
    answer = call(broker.client("root/1"), ROOT_CREDENTIALS, code, ext, text)
    assert answer.code == 0, answer.remark
    return answer


def make_account(broker: ServedBroker, name: str, user_type: str = "Normal") -> Credentials:
    """Make an account without rights."""
    who = credentials(name)
    as_root(broker, CREATE_USER, {"username": name}, {"username": name, "password": who.secret, "userType": user_type})
    return who


def account(broker: ServedBroker, name: str, *rights: str) -> Credentials:
    """Make an account with rights, such as `Topic:T1 Pub Sub`."""
    who = make_account(broker, name)
    for right in rights:
        allow(broker, name, *right.split(" "))
    return who


def allow(
    broker: ServedBroker,
    name: str,
    resource: str,
    *actions: str,
    decision: str = "Allow",
    policy_type: str = "Custom",
    sources: tuple[str, ...] = (),
) -> None:
    """Give an account a rule."""
    entry = {"resource": resource, "actions": list(actions), "sourceIps": list(sources), "decision": decision}
    policies = [{"policyType": policy_type, "entries": [entry]}]
    as_root(broker, UPDATE_ACL, {"subject": f"User:{name}"}, {"subject": f"User:{name}", "policies": policies})


def lose_leadership(broker: ServedBroker) -> None:
    """Have the node follow another node, which leads in the next term."""
    node = broker.memory.node
    node.step_down()
    broker.memory.machine.on_leadership(Leadership(node.term + 1, "broker-a-n1", is_leader=False, ready=False))
    broker.settle()


def only_frame(data: bytes) -> bytes:
    """Return the frame in data that has nothing else."""
    decoder = FrameDecoder()
    decoder.receive_data(data)
    frame = decoder.next_frame()
    assert frame is not None
    return frame
