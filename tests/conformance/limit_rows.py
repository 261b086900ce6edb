"""Rows about limits that other vendors' clients must pass: retention of a queue, and sizes of messages. See `rows`."""

from __future__ import annotations

import random

import pytest
import rows
from cluster_checks import bodies_of, create_topic, stored_messages, wait_until
from rows import RETRY_SECONDS
from stock_clients import StockClient, StockClientError
from wiretap import Wiretap

from dledger_client import SyncAdmin, SyncProducer
from dledger_client.testing import LocalCluster
from dledger_remoting.codes import ResponseCode

KEPT_BYTES = 3 << 20
TRIMMED = f"""
segment_bytes = 1048576
retention_bytes = {KEPT_BYTES}
snapshot_interval_s = 1
"""
"""Configuration of a cluster that keeps 3 MiB of messages."""
OLD_BYTES, OLD_PAUSE_SECONDS = 300_000, 0.5
FOUR_MIB = 4 << 20
RECEIVED_SECONDS = 1.0


def a_new_group_begins_at_the_end_of_a_trimmed_queue(
    cluster: LocalCluster, client: StockClient, topic: str, *, kills: bool
) -> None:
    """Check that a new group that asks for the end begins there, and gets every message from its first one on.

    Only in queues that still have their first message does such a group begin at 0. With `kills` another node has just
    begun to lead.
    """
    create_topic(cluster, topic, queues=1)
    group = f"{topic}-readers"
    with SyncProducer(cluster.namesrv) as producer, SyncAdmin(cluster.namesrv) as admin:

        def is_trimmed() -> bool:
            # One message at a time: the log begins at a snapshot, and there is at most one snapshot per second.
            producer.send(topic, random.randbytes(OLD_BYTES))  # compression does not shrink random bytes
            return wait_until(lambda: all(queue.first > 0 for queue in admin.offsets(group, topic)), OLD_PAUSE_SECONDS)

        assert wait_until(is_trimmed, RETRY_SECONDS), "the queue is trimmed"
        killed = cluster.kill_leader() if kills else None
        client.call("push", name="reader", group=group, topic=topic, from_last=True)
        sent: list[str] = []

        def has_begun() -> bool:
            sent.append(f"new {len(sent)}")
            producer.send(topic, sent[-1].encode())
            return wait_until(lambda: client.bodies("reader") != [], RECEIVED_SECONDS)

        # After a kill the client finds the new leader with its next route lookup.
        assert wait_until(has_begun, RETRY_SECONDS), "a message that was sent after the group began"
        rows.wait_for(client, lambda: sent[-1] in client.bodies("reader"), "the last message")
    got = client.bodies("reader")
    client.call("close_push", name="reader")
    if killed is not None:
        cluster.restart(killed)
        cluster.wait_ready()
    assert got == sent[-len(got) :], "nothing that is older, and no gap"


def only_a_body_of_4_mib_is_stored(
    cluster: LocalCluster, tap: Wiretap, client: StockClient, topic: str, *, adds: int = 0
) -> None:
    """Check that a body of 4 MiB is stored and received, and that a longer one is answered 13 and not stored.

    The client continues after the refusal. `adds` is the maximum number of bytes that the client adds to a body.
    """
    create_topic(cluster, topic, queues=1)
    largest = "x" * (FOUR_MIB - adds)
    rows.send(client, "send_whole", topic=topic, body=largest)
    with pytest.raises(StockClientError):
        client.call("send_whole", topic=topic, body="y" * (FOUR_MIB + 1))
    sends = tap.exchanges(*rows.SENDS)
    refused = [one for one in sends if len(one.body) > FOUR_MIB]
    assert refused, "the client leaves it to the broker to say what is too large"
    assert {one.answer for one in refused} == {ResponseCode.MESSAGE_ILLEGAL}
    rows.send(client, "send", topic=topic, body="next")
    assert {*bodies_of(stored_messages(cluster, topic))} == {largest, "next"}
    client.call("push", name="reader", group=f"{topic}-readers", topic=topic)
    rows.wait_for(client, lambda: "next" in client.bodies("reader"), "the message behind it")
    rows.wait_for(client, lambda: largest in client.bodies("reader"), "a message of 4 MiB")
    client.call("close_push", name="reader")
