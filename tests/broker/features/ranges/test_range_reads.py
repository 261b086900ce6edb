"""Reading the log itself: from followers, whole, verifiable, in the role that the reader accepts, and pinned."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from broker_group import BrokerGroup, client_of
from broker_in_process import Client, node_config, running

from dledger.format import HEADER_BYTES, parse_run
from dledger.types import EntryKind
from dledger_broker.features.pins.table import PINS
from dledger_remoting.codes import ResponseCode
from dledger_remoting.range_reads import PinList, ReadPlan
from dledger_remoting.record import iter_records

ANY = "leader,follower,learner"


async def commit_of(client: Client) -> int:
    answer = await client.call(20012)
    assert answer.code == 0, answer.remark
    return int(answer.ext["commit"])


async def plan_of(client: Client, **fields: str) -> ReadPlan:
    answer = await client.call(20010, fields)
    assert answer.code == 0, answer.remark
    return msgspec.json.decode(answer.body, type=ReadPlan)


async def bodies_of(client: Client, plan: ReadPlan, roles: str = "follower", max_bytes: int = 1 << 20) -> list[bytes]:
    """Every message of topic T1 in the log, slice by slice, in the order of the log; verifies the chain."""
    topic = next(topic for topic in plan.topics if topic.name == "T1")
    queues = {queue.id: queue for queue in topic.queues}
    stops = [*(cut.position for cut in plan.cuts[1:]), plan.commit]
    bodies: list[bytes] = []
    for cut, stop in zip(plan.cuts, stops, strict=True):
        position, chain = cut.position, cut.previous_chain
        while position < stop:
            fields = {"start": str(position), "end": str(stop), "roles": roles, "maxBytes": str(max_bytes)}
            answer = await client.call(20011, {**fields, "minCommit": str(plan.commit)})
            assert answer.code == 0, answer.remark
            assert answer.ext["group"] == plan.group
            assert answer.ext["role"] in roles
            position = int(answer.ext["end"])
            for meta in parse_run(answer.body, chain):
                chain = meta.chain_crc
                if meta.kind != EntryKind.GROUP:
                    continue
                begin = meta.position - int(answer.ext["start"]) + HEADER_BYTES
                records = answer.body[begin : begin + meta.size - HEADER_BYTES - meta.channel]
                bodies += [
                    record.body
                    for record in iter_records(records, verify_crc=True)
                    if record.topic == "T1"
                    and record.physical_offset >= topic.created
                    and record.queue_id in queues
                    and queues[record.queue_id].first <= record.queue_offset < queues[record.queue_id].next
                ]
    return bodies


async def test_a_follower_gives_all_that_was_acknowledged_and_the_leader_gives_nothing(group: BrokerGroup) -> None:
    leader, (follower, _) = await group.leader(), await group.followers()
    client = await client_of(follower)
    sent = [b"%d" % number + bytes(9000) for number in range(300)]
    senders = [await client_of(follower) for _ in range(20)]
    for at in range(0, len(sent), len(senders)):
        await asyncio.gather(*map(client_send, senders, sent[at : at + len(senders)]))
    plan = await plan_of(client, minCommit=str(await commit_of(client)), sliceBytes="100000", times="true")
    assert (plan.group, plan.ordinal, plan.node, plan.role) == ("broker-a", 0, follower.config.node_id, "follower")
    assert len(plan.cuts) > 10
    assert sorted(await bodies_of(client, plan)) == sorted(sent)
    assert sorted(await bodies_of(client, plan, max_bytes=1)) == sorted(sent)
    assert follower.counter.range_bytes_follower > 2 * sum(map(len, sent))
    assert [broker.counter.range_bytes_leader for broker in group.brokers.values()] == [0, 0, 0]
    timed = [cut for cut in plan.cuts if cut.min_time is not None and cut.max_time is not None]
    assert timed
    assert leader.counter.range_reads == 0


async def client_send(client: Client, body: bytes) -> None:
    answer = await client.send(body)
    assert answer.code == 0, answer.remark


async def test_a_role_that_the_reader_does_not_accept_refuses(group: BrokerGroup) -> None:
    leader, (follower, _) = await group.leader(), await group.followers()
    await client_send(await client_of(leader), b"x")
    for code, fields in ((20010, {}), (20011, {"start": "0", "end": "1"})):
        answer = await (await client_of(leader)).call(code, fields)
        assert answer.code == ResponseCode.READ_ROLE_REFUSED
        assert "is the leader of group broker-a" in (answer.remark or "")
        answer = await (await client_of(follower)).call(code, {**fields, "roles": "leader,learner"})
        assert answer.code == ResponseCode.READ_ROLE_REFUSED
        answer = await (await client_of(follower)).call(code, {**fields, "roles": "boss"})
        assert answer.code == ResponseCode.INVALID_PARAMETER
    assert leader.counter.range_reads_refused == 2
    assert (await (await client_of(leader)).call(20010, {"roles": ANY})).code == 0


async def test_a_pull_may_choose_the_role_too(group: BrokerGroup) -> None:
    leader, (follower, _) = await group.leader(), await group.followers()
    await client_send(await client_of(leader), b"x")
    commit = {"minCommit": str(await commit_of(await client_of(leader)))}
    assert (await (await client_of(follower)).call(20010, commit)).code == 0  # it has applied the message
    chosen = {"roles": "follower,learner", "consumerGroup": "TOOLS_CONSUMER"}
    assert (await (await client_of(leader)).pull(0, **chosen)).code == ResponseCode.READ_ROLE_REFUSED
    answer = await (await client_of(follower)).pull(0, **chosen)
    assert [record.body for record in iter_records(answer.body)] == [b"x"]


async def test_a_range_that_begins_inside_an_entry_is_a_mistake(group: BrokerGroup) -> None:
    follower, _ = await group.followers()
    client = await client_of(follower)
    for start, end in (("10", "200"), ("-1", "10"), ("20", "10")):
        answer = await client.call(20011, {"start": start, "end": end})
        assert answer.code == ResponseCode.INVALID_PARAMETER, (start, end)


async def test_a_topic_that_was_made_anew_starts_where_its_present_incarnation_does(tmp_path: Path) -> None:
    async with running(node_config(tmp_path), bootstrap=True) as broker:
        client = await client_of(broker)
        await client_send(client, b"old")
        assert (await client.call(215, {"topic": "T1"})).code == 0
        await client_send(client, b"new")
        plan = await plan_of(client, roles=ANY, topics="T1,unknown", minCommit=str(await commit_of(client)))
        assert [topic.name for topic in plan.topics] == ["T1"]
        assert await bodies_of(client, plan, ANY) == [b"new"]
        timed = await plan_of(client, roles=ANY, times="true")
        (record,) = list(iter_records((await client.pull(0)).body))
        assert timed.cuts[0].max_time == record.store_timestamp


async def test_pins_are_replicated_listed_renewed_by_reads_and_given_up(group: BrokerGroup) -> None:
    await group.understanding()
    follower, other = await group.followers()
    client = await client_of(follower)
    await client_send(client, b"x")
    pinned = await client.call(20013, {"name": "job-1", "position": "100", "leaseMillis": "40"})
    assert (pinned.code, pinned.ext["position"]) == (0, "100")
    assert (await client.call(20013, {"name": "job-1", "position": "50", "leaseMillis": "40"})).ext["position"] == "50"
    listed = await (await client_of(other)).call(20015)
    (row,) = msgspec.json.decode(listed.body, type=PinList).pins
    assert (row.name, row.position, row.lease) == ("job-1", 50, 40)
    leader = await group.leader()
    async with asyncio.timeout(10):
        while follower.machine.state.table(PINS).get("job-1") is None:
            await client.call(20012)
        while leader.machine.state.table(PINS).get("job-1").expires_ms == row.expires:
            assert (await client.call(20011, {"start": "0", "end": "0", "pin": "job-1"})).code == 0
    assert (await client.call(20014, {"name": "job-1"})).code == 0
    assert (await client.call(20014, {"name": "job-1"})).code == 0
    listed = await client.call(20015)
    assert msgspec.json.decode(listed.body, type=PinList).pins == []


async def test_a_pin_says_what_is_wrong_with_it(group: BrokerGroup) -> None:
    client = await client_of(await group.understanding())
    for fields in (
        {"name": "", "position": "0"},
        {"name": "x" * 300, "position": "0"},
        {"name": "x", "position": "0", "leaseMillis": "3600001"},
        {"name": "x", "position": "0", "leaseMillis": "0"},
    ):
        assert (await client.call(20013, fields)).code == ResponseCode.INVALID_PARAMETER
    assert (await client.call(20013, {"name": "x", "position": "-1"})).code == ResponseCode.READ_TRIMMED
