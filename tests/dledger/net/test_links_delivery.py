"""A link delivers messages whole, once and in order. A slow reader costs bounded memory."""

import asyncio

from dledger.core.messages import Append, Heartbeat, InstallSnapshot, VoteReply
from dledger.net.settings import LinkLimits
from dledger.types import Lane, Membership, ReplicaId


async def test_messages_of_a_lane_arrive_in_order(group):
    a, b = await group.pair()
    for number in range(2000):
        assert a.links.send("b", Lane.CONTROL, Heartbeat(1, number))
    await b.until(lambda: len(b.messages) == 2000)
    assert [message.commit_index for _, message, _ in b.messages] == list(range(2000))
    assert {sender for sender, _, _ in b.messages} == {a.me}


async def test_payloads_of_all_sizes_arrive_unchanged(group):
    a, b = await group.pair()
    payloads = [bytes([size % 251]) * size for size in (0, 1, 65_535, 65_536, 262_136, 262_144, 1_048_576, 9_000_000)]
    for payload in payloads:
        half = len(payload) // 2
        assert a.links.send("b", Lane.BULK, Append(3, 1, 2, 0, 5), (payload[:half], payload[half:]))
        assert a.links.send("b", Lane.BULK, VoteReply(1, True))
    await b.until(lambda: len(b.messages) == 2 * len(payloads))
    assert [payload for _, message, payload in b.messages if isinstance(message, Append)] == payloads
    assert all(type(payload) is bytes for _, _, payload in b.messages)


async def test_nested_members_survive_the_wire(group):
    a, b = await group.pair()
    install = InstallSnapshot(7, 1 << 30, 9, 6, 0xFFFFFFFF, Membership((ReplicaId("x", "1"), ReplicaId("y", "2"))), 4)
    assert b.links.send("a", Lane.CONTROL, install)
    await a.until(lambda: bool(a.messages))
    assert a.messages == [(b.me, install, b"")]


async def test_data_carries_its_channel_number(group):
    a, b = await group.pair()
    assert a.links.send_data("b", 0, (b"zero",))
    assert a.links.send_data("b", 70_000, (b"seventy ", b"thousand"))
    await b.until(lambda: len(b.data) == 2)
    assert b.data == [(a.me, 0, b"zero"), (a.me, 70_000, b"seventy thousand")]


async def test_a_payload_is_sent_to_every_peer_without_a_copy(group):
    a, b = await group.pair()
    c = await group.start("c", {"a": a.links.address})
    await a.until_connected("b", "c")
    payload = bytes(300_000)
    written = []
    for peer in ("b", "c"):
        connection = a.links._peers[peer]._lanes[Lane.BULK]
        written.append(_record_writelines(connection))
        assert a.links.send(peer, Lane.BULK, Append(1, -1, 0, -1, 1), (payload,))
    for calls in written:
        assert len(calls) == 1
        assert calls[0][1] is payload
    await b.until(lambda: bool(b.messages))
    await c.until(lambda: bool(c.messages))


async def test_a_slow_reader_costs_limited_memory_and_loses_only_refused_sends(group):
    limits = LinkLimits(bulk_queue_bytes=3_000_000)
    a, b = await group.pair(limits=limits)
    reader = b.links._accepted["a", Lane.BULK]._transport
    reader.pause_reading()
    chunk = bytes(1_000_000)
    accepted = 0
    async with asyncio.timeout(20):
        while a.links.send_data("b", 1, (accepted.to_bytes(4, "big"), chunk)):
            accepted += 1
            await asyncio.sleep(0)
    assert 0 < a.links.queued_bytes("b", Lane.BULK) <= limits.bulk_queue_bytes
    assert a.links.counters.refused_sends == 1
    assert a.links.send("b", Lane.CONTROL, Heartbeat(1, 1)), "the other lane is not affected"
    reader.resume_reading()
    await b.until(lambda: len(b.data) == accepted)
    assert [int.from_bytes(data[:4], "big") for _, _, data in b.data] == list(range(accepted))
    assert a.links.queued_bytes("b", Lane.BULK) == 0


async def test_counters_of_both_ends_agree(group):
    a, b = await group.pair()
    for _ in range(10):
        a.links.send_data("b", 1, (bytes(1000),))
    await b.until(lambda: len(b.data) == 10)
    sent, received = a.links.counters, b.links.counters
    assert sent.bytes_out == received.bytes_in > 10_000
    assert sent.frames_out == received.frames_in == 12, "ten and the two that open the lanes"


def _record_writelines(connection) -> list[tuple[bytes, ...]]:
    calls: list[tuple[bytes, ...]] = []
    transport = connection._transport

    class Recorder:
        def __getattr__(self, name: str) -> object:
            return getattr(transport, name)

        def writelines(self, data) -> None:
            calls.append(tuple(data))
            transport.writelines(data)

    connection._transport = Recorder()
    return calls
