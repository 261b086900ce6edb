"""Limits on a client's cost to a node are counted under their keys, and disturb no other client.

`tests/broker/frontend/test_listener_limits.py` reaches each limit of a listener. These tests need real nodes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from bare_client import BareClient, counter, counters, followers, logged, metrics, pull_fields, until

from dledger_broker.config import KEYS, BrokerConfig
from dledger_broker.config_keys.limits import Limits
from dledger_client.testing import LocalCluster, local_cluster_fixture
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, encode_command

MAX_FRAME_BYTES = BrokerConfig.max_frame_bytes
MAX_OUTGOING_BYTES = BrokerConfig.max_outgoing_bytes
RECEIVE_BUFFER_BYTES = 8 << 10
LARGE_BYTES = 3_000_000

cluster = local_cluster_fixture()


@pytest.fixture
def leader(cluster: LocalCluster) -> str:
    """Return the leader's address."""
    return cluster.client_address(cluster.leader())


@pytest.fixture
def witness(leader: str) -> Iterator[BareClient]:
    """Run another client, which must notice nothing."""
    with BareClient(leader) as client:
        assert client.send_message(b"before").code == ResponseCode.SUCCESS
        yield client
    with BareClient(leader) as client:
        assert client.send_message(b"after").code == ResponseCode.SUCCESS


def test_every_limit_is_counted_under_its_key(leader):
    limits = [key.name for key in KEYS.by_name.values() if key.section is Limits]
    counted = {name for name, _ in metrics(leader)}
    assert {f"dledger_broker_{key.removesuffix('_ms')}_total" for key in limits} <= counted


def test_a_frame_above_the_limit_closes_its_connection_before_it_is_read(cluster, leader, witness):
    refused, too_large = counters(leader, "frames_refused", "max_frame_bytes")
    with BareClient(leader) as client:
        client.write(struct.pack(">II", MAX_FRAME_BYTES + 1, 100))
        client.wait_closed()
    assert counter(leader, "frames_refused") == refused + 1
    assert counter(leader, "max_frame_bytes") == too_large + 1
    reason = f"frame of {MAX_FRAME_BYTES + 1} bytes is larger than the limit of {MAX_FRAME_BYTES}"
    logged(cluster, reason)


def test_a_client_that_asks_for_much_and_reads_nothing_is_dropped_at_once(cluster, witness):
    """A follower has forwarded all its pulls before the answers come. A leader would wait for the reader."""
    follower = followers(cluster)[0]
    address = cluster.client_address(follower)
    dropped = counter(address, "max_outgoing_bytes")
    assert witness.send_message(bytes(LARGE_BYTES), topic="Large").code == ResponseCode.SUCCESS
    fields = pull_fields(0, topic="Large", messages=1)
    with BareClient(address, receive_buffer_bytes=RECEIVE_BUFFER_BYTES) as client:
        # Few enough to arrive in one piece. The node would read a second piece only after it has answered the first.
        pulls = (RemotingCommand(RequestCode.PULL_MESSAGE, opaque=opaque, ext=fields) for opaque in range(24))
        client.write(b"".join(map(encode_command, pulls)))
        until(lambda: counter(address, "max_outgoing_bytes") == dropped + 1, "dropped")
        client.wait_closed()
    logged(cluster, f"of answers unread, the limit is {MAX_OUTGOING_BYTES}", follower)
