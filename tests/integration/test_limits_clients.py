"""Limits on what a client may cost a node: each has a key, is reached here, is counted, and disturbs nobody else."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from bare_client import (
    BareClient,
    broker_log,
    counter,
    metrics,
    pull_fields,
    send_fields,
    until,
)

from dledger_broker.config import KEYS
from dledger_broker.config_keys.limits import Limits
from dledger_client.testing import LocalCluster, local_cluster_fixture
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, encode_command

pytestmark = pytest.mark.slow

MAX_CONNECTIONS = 40
MAX_IN_FLIGHT = 16
MAX_HELD_PULLS = 4
MAX_FRAME_BYTES = 1 << 20
MAX_PARTIAL_BYTES = 4 << 20
MAX_FORWARD_BYTES = 64 << 10
RECEIVE_BUFFER_BYTES = 8 << 10
LARGE_BYTES = 500_000

cluster = local_cluster_fixture(
    config=f"""
        max_connections = {MAX_CONNECTIONS}
        max_in_flight = {MAX_IN_FLIGHT}
        max_held_pulls = {MAX_HELD_PULLS}
        max_message_bytes = {MAX_FRAME_BYTES // 2}
        max_frame_bytes = {MAX_FRAME_BYTES}
        max_partial_bytes = {MAX_PARTIAL_BYTES}
        slow_sender_timeout_ms = 1000
        pause_outgoing_bytes = {64 << 10}
        max_outgoing_bytes = {16 << 20}
        slow_reader_timeout_ms = 1000
        idle_timeout_ms = 3000
        max_forward_bytes = {MAX_FORWARD_BYTES}
    """
)


@pytest.fixture
def leader(cluster: LocalCluster) -> str:
    """The leader's address."""
    return cluster.client_address(cluster.leader())


@pytest.fixture
def witness(leader: str) -> Iterator[BareClient]:
    """Another client, which must notice nothing."""
    with BareClient(leader) as client:
        assert client.send_message(b"before").code == ResponseCode.SUCCESS
        yield client
    with BareClient(leader) as client:
        assert client.send_message(b"after").code == ResponseCode.SUCCESS


def frames(requests: list[RemotingCommand]) -> bytes:
    """Many requests in one piece."""
    return b"".join(encode_command(request) for request in requests)


def test_every_limit_is_counted_under_its_key(leader):
    limits = [key.name for key in KEYS.by_name.values() if key.section is Limits]
    counted = {name for name, _ in metrics(leader)}
    assert {f"dledger_broker_{key.removesuffix('_ms')}_total" for key in limits} <= counted


def test_a_flood_is_read_no_faster_than_it_is_served(leader, witness):
    reached = counter(leader, "max_in_flight")
    flood = [RemotingCommand(310, opaque=number, ext=send_fields(), body=b"x") for number in range(1, 501)]
    with BareClient(leader) as client:
        client.write(frames(flood))
        assert witness.send_message(b"meanwhile").code == ResponseCode.SUCCESS
        answers = [client.read() for _ in flood]
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    assert {answer.opaque for answer in answers} == {request.opaque for request in flood}
    assert counter(leader, "max_in_flight") > reached


def test_one_long_poll_too_many_is_answered_at_once(leader, witness):
    reached = counter(leader, "max_held_pulls")
    with BareClient(leader) as client:
        assert client.send_message(b"first", topic="Held").code == ResponseCode.SUCCESS
        pulls = [
            client.post(RequestCode.PULL_MESSAGE, pull_fields(1, topic="Held", suspend_ms=60_000)) for _ in range(6)
        ]
        early = [client.read() for _ in range(len(pulls) - MAX_HELD_PULLS)]
        assert [answer.code for answer in early] == [ResponseCode.PULL_NOT_FOUND] * len(early)
        assert witness.send_message(b"second", topic="Held").code == ResponseCode.SUCCESS
        late = [client.read() for _ in range(MAX_HELD_PULLS)]
    assert [answer.code for answer in late] == [ResponseCode.SUCCESS] * MAX_HELD_PULLS
    assert {answer.opaque for answer in (*early, *late)} == set(pulls)
    assert counter(leader, "max_held_pulls") == reached + len(early)


def test_a_frame_above_the_limit_closes_its_connection_before_it_is_read(cluster, leader, witness):
    refused, too_large = counter(leader, "frames_refused"), counter(leader, "max_frame_bytes")
    with BareClient(leader) as client:
        client.write(struct.pack(">II", MAX_FRAME_BYTES + 1, 100))
        client.wait_closed()
    assert counter(leader, "frames_refused") == refused + 1
    assert counter(leader, "max_frame_bytes") == too_large + 1
    reason = f"frame of {MAX_FRAME_BYTES + 1} bytes is larger than the limit of {MAX_FRAME_BYTES}"
    until(lambda: reason in broker_log(cluster, cluster.leader()), "a log line")


def test_requests_that_never_fully_arrive_take_turns_and_are_closed_and_others_go_on(cluster, leader, witness):
    reached, closed = counter(leader, "max_partial_bytes"), counter(leader, "slow_sender_timeout")
    large = bytes(MAX_FRAME_BYTES // 2)
    stalled = [BareClient(leader) for _ in range(13)]
    try:
        for client in stalled:
            client.write(struct.pack(">II", MAX_FRAME_BYTES - 4, 100) + bytes(MAX_FRAME_BYTES // 4))
        until(lambda: counter(leader, "max_partial_bytes") > reached, "they take turns")
        assert witness.send_message(b"meanwhile").code == ResponseCode.SUCCESS
        assert witness.send_message(large).code == ResponseCode.SUCCESS
        assert 0 < metrics(leader)["dledger_broker_partial_bytes", ""] <= MAX_PARTIAL_BYTES
        until(lambda: counter(leader, "slow_sender_timeout") > closed, "their turns end")
    finally:
        for client in stalled:
            client.__exit__(None, None, None)
    until(lambda: metrics(leader)["dledger_broker_partial_bytes", ""] == 0, "nothing is left")
    until(lambda: "while others waited for memory" in broker_log(cluster, cluster.leader()), "a log line")


def test_a_silent_client_and_one_that_stalls_in_a_frame_are_closed(cluster, leader):
    closed = counter(leader, "idle_timeout")
    with BareClient(leader) as silent, BareClient(leader) as stalled, BareClient(leader) as busy:
        assert silent.send_message(b"x").code == ResponseCode.SUCCESS
        stalled.write(struct.pack(">II", 5000, 100) + b'{"code":310,')
        until(
            lambda: busy.send_message(b"x").code == 0 and counter(leader, "idle_timeout") >= closed + 2, "both closed"
        )
        silent.wait_closed()
        stalled.wait_closed()
        assert busy.send_message(b"x").code == ResponseCode.SUCCESS
    until(lambda: "nothing was sent or received for 3000 ms" in broker_log(cluster, cluster.leader()), "a log line")


def test_a_connection_too_many_is_closed_at_once(cluster, leader):
    refused = counter(leader, "max_connections")
    clients = [BareClient(leader) for _ in range(MAX_CONNECTIONS)]
    try:
        assert clients[0].send_message(b"x").code == ResponseCode.SUCCESS
        until(lambda: metrics(leader)["dledger_broker_connections", ""] >= MAX_CONNECTIONS, "all are open")
        with BareClient(leader) as late:
            late.wait_closed()
        assert counter(leader, "max_connections") > refused
        assert clients[0].send_message(b"x").code == ResponseCode.SUCCESS
    finally:
        for client in clients:
            client.__exit__(None, None, None)
    until(
        lambda: f"max_connections = {MAX_CONNECTIONS} are open" in broker_log(cluster, cluster.leader()), "a log line"
    )
    until(lambda: metrics(leader)["dledger_broker_connections", ""] < MAX_CONNECTIONS, "there is room again")
    with BareClient(leader) as client:
        assert client.send_message(b"x").code == ResponseCode.SUCCESS


# ---------------------------------------------------------------- clients that do not read


@pytest.fixture(scope="module")
def large(cluster: LocalCluster) -> str:
    """A topic of which one pull brings 500 KB."""
    with BareClient(cluster.client_address(cluster.leader())) as client:
        assert client.send_message(bytes(LARGE_BYTES), topic="Large").code == ResponseCode.SUCCESS
    return "Large"


def pulls(topic: str, number: int) -> bytes:
    fields = pull_fields(0, topic=topic, messages=1)
    return frames([RemotingCommand(RequestCode.PULL_MESSAGE, opaque=opaque, ext=fields) for opaque in range(number)])


def test_a_client_that_reads_late_is_waited_for(leader, large, witness):
    paused = counter(leader, "pause_outgoing_bytes")
    with BareClient(leader, receive_buffer_bytes=RECEIVE_BUFFER_BYTES) as client:
        client.write(pulls(large, 20))
        until(lambda: counter(leader, "pause_outgoing_bytes") > paused, "reading from it pauses")
        assert witness.send_message(b"meanwhile").code == ResponseCode.SUCCESS
        assert [len(client.read().body) > LARGE_BYTES for _ in range(20)] == [True] * 20


def test_a_client_that_goes_on_not_reading_is_dropped(cluster, leader, large, witness):
    dropped = counter(leader, "slow_reader_timeout")
    with BareClient(leader, receive_buffer_bytes=RECEIVE_BUFFER_BYTES) as client:
        client.write(pulls(large, 20))
        until(lambda: counter(leader, "slow_reader_timeout") == dropped + 1, "dropped after a second")
        client.wait_closed()
    until(lambda: "it read nothing like fast enough for 1000 ms" in broker_log(cluster, cluster.leader()), "a log line")


def test_a_client_that_asks_for_much_and_reads_nothing_is_dropped_at_once(cluster, leader, large, witness):
    dropped = counter(leader, "max_outgoing_bytes")
    with BareClient(leader, receive_buffer_bytes=RECEIVE_BUFFER_BYTES) as client:
        # Few enough to come in one piece: of what comes in a second one, nothing is read before the first is answered.
        client.write(pulls(large, 48))
        until(lambda: counter(leader, "max_outgoing_bytes") == dropped + 1, "dropped")
        client.wait_closed()
    until(lambda: f"of answers unread, the limit is {16 << 20}" in broker_log(cluster, cluster.leader()), "a log line")


# ---------------------------------------------------------------- without a leader


def test_requests_that_wait_for_a_leader_are_bounded_and_none_is_lost(cluster):
    leading = cluster.leader()
    alone, other = (node_id for node_id in cluster.node_ids if node_id != leading)
    address = cluster.client_address(alone)
    reached = counter(address, "max_forward_bytes")
    for node_id in (leading, other):
        cluster.pause(node_id)
    try:
        until(lambda: (status := cluster.status(alone)) is not None and status.leader_id is None, "no leader is known")
        with BareClient(address) as client:
            waiting = [client.post(RequestCode.SEND_MESSAGE_V2, send_fields("Alone"), bytes(30_000)) for _ in range(3)]
            busy = client.read()
            assert (busy.opaque, busy.code) == (waiting[2], ResponseCode.SYSTEM_BUSY)
            assert "wait for a leader, try again later" in (busy.remark or "")
            held = [client.read() for _ in range(2)]
        assert [answer.code for answer in held] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
        assert counter(address, "max_forward_bytes") == reached + 1
    finally:
        for node_id in (leading, other):
            cluster.resume(node_id)
    cluster.wait_ready()
    with BareClient(cluster.client_address(cluster.leader())) as client:
        assert client.send_message(b"only one", topic="Alone").ext["queueOffset"] == "0", "14 and 2 mean not stored"
