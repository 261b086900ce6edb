"""Limits on a client's cost to a node are counted under their keys, and disturb no other client.

`tests/broker/frontend/test_listener_limits.py` reaches each limit of a listener. These tests need real nodes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from bare_client import BareClient, counter, counters, logged, metrics

from dledger_broker.config import KEYS, BrokerConfig
from dledger_broker.config_keys.limits import Limits
from dledger_client.testing import LocalCluster, local_cluster_fixture
from dledger_remoting.codes import ResponseCode

MAX_FRAME_BYTES = BrokerConfig.max_frame_bytes

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
