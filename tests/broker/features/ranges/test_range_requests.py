"""Reads of the log itself: whole, verifiable, pinned, in the role that the reader accepts, and behind sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from broker_group import BrokerGroup, client_of
from broker_in_process import Client, node_config, running
from served_broker import (
    NODE_ID,
    FakeClient,
    MakeBroker,
    ServedBroker,
    assert_refused,
    bodies,
    founded,
    make_served_broker,
    pull_ext,
)

from dledger.format import HEADER_BYTES, parse_run
from dledger.store.ranges import EntryRun, LogCut
from dledger.types import EntryKind, Membership, ReplicaId
from dledger_broker.features.pins.table import PINS
from dledger_broker.features.ranges.pace import (
    MAX_HOLD_S,
    MIN_READ_BYTES,
    MIN_TAKEN_BYTES_PER_S,
    MIN_WAITED_SHARE,
    READS_PER_S,
    WINDOW_S,
    RangePace,
)
from dledger_broker.features.ranges.requests import CATCH_UP_S
from dledger_broker.kernel.requests import Buffer
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.environment import FakeEnvironment
from dledger_remoting.codes import ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.range_reads import PinList, PinRow, ReadPlan
from dledger_remoting.record import iter_records, scan_records

PLAN, READ, COMMIT, PIN, UNPIN, LIST = 20010, 20011, 20012, 20013, 20014, 20015


def reader(broker: ServedBroker, **keys: Any) -> FakeClient:
    """Return a client of a broker whose group has an ordinal."""
    return founded(broker, **{"group_ordinal": 0, **keys}).client()


def plan_of(client: FakeClient, **fields: str) -> ReadPlan:
    answer = client.call_from_disk(PLAN, {"roles": "leader", **fields})
    assert answer.code == 0, answer.remark
    return msgspec.json.decode(answer.body, type=ReadPlan)


def read(client: FakeClient, start: int, end: int, **fields: str) -> RemotingCommand:
    return client.call_from_disk(READ, {"roles": "leader", "start": str(start), "end": str(end), **fields})


def test_a_range_beyond_the_applied_position_is_refused_after_a_short_wait(broker: ServedBroker):
    client, far = reader(broker), 1 << 40
    plan = client.call_from_disk(PLAN, {"roles": "leader", "minCommit": str(far)})
    assert plan.code == ResponseCode.READ_BEHIND
    assert broker.memory.env.now() >= CATCH_UP_S
    assert read(client, 0, far).code == ResponseCode.READ_BEHIND


def test_a_plan_is_refused_until_the_group_has_an_ordinal(client: FakeClient):
    answer = client.call_from_disk(PLAN, {"roles": "leader"})
    assert_refused(answer, ResponseCode.SERVICE_NOT_AVAILABLE, "ordinal")
    assert plan_of(reader(client.broker, group_ordinal=5)).ordinal == 5


def test_the_length_of_a_list_of_roles_is_limited(broker: ServedBroker):
    client = reader(broker)
    for count, code in ((3, ResponseCode.SUCCESS), (300, ResponseCode.INVALID_PARAMETER)):
        assert client.call_from_disk(PLAN, {"roles": ",".join(["leader"] * count)}).code == code


def test_a_plan_names_a_repeated_topic_once(broker: ServedBroker):
    """A request of 16 MB would otherwise make an answer of gigabytes."""
    assert [topic.name for topic in plan_of(reader(broker), topics="T1,T1," * 1000).topics] == ["T1"]


def test_the_times_of_slices_cover_their_records_even_where_a_leaders_clock_was_behind(make_broker: MakeBroker):
    broker = make_broker()
    client = reader(broker)
    for leader in range(3):
        for _ in range(5):
            broker.advance(0.5)
            client.send_message("T1", bytes(30_000))
        broker.memory.node.step_down()
        broker.memory.env._now -= 4 * leader
        broker.memory.node.lead()
        broker.settle()
    plan = plan_of(client, times="true", sliceBytes="65536")
    stops = [*(cut.position for cut in plan.cuts[1:]), plan.commit]
    assert len(plan.cuts) > 4
    for cut, stop in zip(plan.cuts, stops, strict=True):
        times = [
            record.store_timestamp
            for meta in broker.memory.log.entries
            if cut.position <= meta.position < stop
            for record in scan_records(bytes(broker.memory.log.data), meta.position + 48, meta.end - meta.channel)
        ]
        assert (cut.min_time, cut.max_time) == ((min(times), max(times)) if times else (None, None))


def test_a_trimmed_range_is_refused_as_trimmed(broker: ServedBroker):
    client = reader(broker)
    client.send_message("T1")
    broker.memory.node.trim(broker.memory.node.snapshot())
    assert read(client, 0, 100).code == ResponseCode.READ_TRIMMED
    assert client.call(20013, {"name": "late", "position": "0"}).code == ResponseCode.READ_TRIMMED


def test_a_plan_that_meets_a_trim_is_refused_and_can_be_repeated(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch):
    """Cuts that begin behind what the plan says, or no cuts at all, would pass for all there is."""
    client, node = reader(broker), broker.memory.node
    client.send_message("T1")
    real_cuts = node.cuts

    async def cuts(start: int, end: int, slice_bytes: int) -> list[LogCut]:
        node.trim(node.snapshot())
        return await real_cuts(start, end, slice_bytes)

    monkeypatch.setattr(node, "cuts", cuts)
    for code in (ResponseCode.READ_BEHIND, ResponseCode.SUCCESS):
        assert client.call_from_disk(PLAN, {"roles": "leader"}).code == code
        monkeypatch.undo()
        client.send_message("T1")


def test_damaged_entries_found_by_a_verifying_range_read_are_reported_for_repair(broker: ServedBroker):
    client, log = reader(broker), broker.memory.log
    client.send_message("T1", b"body")
    end = log.end
    assert read(client, 0, end, verify="true").code == 0
    log.data[log.data.index(b"body")] ^= 1
    assert read(client, 0, end, verify="true").code == ResponseCode.READ_BEHIND
    assert broker.memory.node.failed_reads == [0]


def test_a_learner_serves_only_readers_that_accept_learners(make_broker: MakeBroker):
    config, me = make_broker().config, ReplicaId(NODE_ID, "i0")
    memory = BrokerInMemory(lead=False)
    broker = make_served_broker(config, memory)
    for membership, role, other in (
        (Membership(learners=(me,)), "learner", "follower"),
        (Membership(voters=(me,)), "follower", "learner"),
    ):
        memory.node.membership = membership
        part = {"start": "0", "end": "0"}
        assert broker.client().call_from_disk(20011, {**part, "roles": role}).ext["role"] == role
        refused = broker.client().call(20011, {**part, "roles": other})
        assert_refused(refused, ResponseCode.READ_ROLE_REFUSED, f"is the {role} of group")


def test_a_range_goes_to_the_socket_without_a_copy(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch):
    client = reader(broker)
    data = bytes(100_000)
    given: list[Buffer] = []
    answer = client.answer

    async def read_run(start: int, end: int, max_bytes: int) -> EntryRun:
        return EntryRun(data, end)

    def note(parts: Sequence[Buffer]) -> None:
        given.extend(parts)
        answer(parts)

    monkeypatch.setattr(broker.memory.node, "read_run", read_run)
    monkeypatch.setattr(client, "answer", note)
    assert read(client, 0, 100).body == data
    assert any(part is data for part in given)


def test_ranges_are_held_back_and_cut_smaller_while_sends_need_the_cores(make_broker: MakeBroker):
    broker = make_broker(busy_range_bytes_per_s=1 << 20)
    client, env = reader(broker), broker.memory.env

    def read_all() -> int:
        """Read everything, and return in how many answers it came."""
        end, position, answers = broker.memory.machine.applied_position, 0, 0
        while position < end:
            env.core_wait_s += 0.1
            position = int(read(client, position, end).ext["end"])
            answers += 1
        return answers

    for _ in range(20):
        client.send_message("T1", bytes(200_000))
        broker.advance(0.1)
    few = read_all()
    assert not broker.counters.range_reads_held, "nobody waited for a core while these came in"
    for _ in range(20):
        env.core_wait_s += 0.1
        client.send_message("T1", bytes(200_000))
        broker.advance(0.1)
        read(client, 0, 0)
    began = env.now()
    many = read_all()
    assert env.now() - began > 0.5, "held until the sends are a while ago"
    assert many > 2 * few
    assert broker.counters.range_reads_held > 2


# ---- pace on a node that is short of cores


LEAST = 8 << 20
WANTED = 4 << 20


class Node:
    """Node that takes in a number of bytes a second, and waits for a core for a share of the time."""

    def __init__(self, taken_per_s: float, waited_share: float, least: int = LEAST) -> None:
        self.env = FakeEnvironment()
        self.taken_per_s = taken_per_s
        self.waited_share = waited_share
        self.taken = 0.0
        self.pace = RangePace(self.env, lambda: int(self.taken), least)

    def pass_time(self, seconds: float) -> None:
        self.env.advance(seconds)
        self.taken += self.taken_per_s * seconds
        self.env.core_wait_s += self.waited_share * seconds

    def serve(self, seconds: float, readers: int = 1) -> float:
        """Serve readers that ask for the next range as soon as they have one, and return the bytes a second of all."""
        end, total, ready = self.env.now() + seconds, 0, [self.env.now()] * readers
        while min(ready) < end:
            reader = ready.index(min(ready))
            if ready[reader] > self.env.now():
                self.pass_time(ready[reader] - self.env.now())
            turn = self.pace.turn(WANTED)
            total += turn.max_bytes
            ready[reader] += turn.hold_s + 0.001
            self.pace.served(turn, turn.max_bytes)
        return total / seconds

    @property
    def is_free(self) -> bool:
        return self.pace.turn(WANTED) == (0.0, WANTED)


BUSY = (2 * MIN_TAKEN_BYTES_PER_S, 2 * MIN_WAITED_SHARE)


@pytest.mark.parametrize("readers", [1, 3, 40])
def test_a_busy_node_serves_ranges_at_the_configured_rate_for_any_number_of_readers(readers: int):
    node = Node(*BUSY)
    node.serve(2.0, readers)
    assert node.serve(10.0, readers) == pytest.approx(LEAST, rel=0.15)


@pytest.mark.parametrize(
    ("taken_per_s", "waited_share", "least"),
    [(MIN_TAKEN_BYTES_PER_S / 2, 0.5, LEAST), (100 << 20, MIN_WAITED_SHARE / 2, LEAST), (0, 0, LEAST), (*BUSY, 0)],
    ids=["few sends", "enough cores", "idle", "nothing is configured"],
)
def test_range_reads_are_not_held_back_without_need(taken_per_s: float, waited_share: float, least: int):
    node = Node(taken_per_s, waited_share, least)
    for _ in range(100):
        node.pass_time(WINDOW_S)
        assert node.is_free


@pytest.mark.parametrize("pass_time", [Node.serve, Node.pass_time], ids=["a job goes on", "another one comes later"])
def test_range_reads_are_free_again_soon_after_sends_end(pass_time: Callable[[Node, float], object]):
    node = Node(*BUSY)
    node.serve(3.0)
    assert not node.is_free
    node.taken_per_s = 0
    pass_time(node, 2.0)
    assert node.is_free


def test_a_range_read_has_a_maximum_wait_and_a_minimum_size():
    node = Node(*BUSY)
    node.serve(3.0)
    turns = [node.pace.turn(WANTED) for _ in range(1000)]
    assert max(turn.hold_s for turn in turns) == MAX_HOLD_S
    assert min(turn.max_bytes for turn in turns) == MIN_READ_BYTES
    assert turns[0].max_bytes <= LEAST / READS_PER_S
    node.pass_time(MAX_HOLD_S + 1)
    assert node.pace.turn(WANTED).hold_s == 0, "what a crowd was promised holds nobody up later"


def test_a_range_read_above_its_share_delays_the_next_read():
    node = Node(*BUSY)
    node.serve(3.0)
    node.pass_time(1.0)
    node.pace.served(node.pace.turn(WANTED), LEAST // 2)
    assert node.pace.turn(WANTED).hold_s == pytest.approx(0.5, abs=0.01)


# ---- reads from a cluster


ANY = "leader,follower,learner"


async def ask(client: Client, code: int, **fields: str) -> RemotingCommand:
    answer = await client.call(code, fields)
    assert answer.code == 0, answer.remark
    return answer


async def commit_of(client: Client) -> str:
    return (await ask(client, COMMIT)).ext["commit"]


async def plan_from(client: Client, **fields: str) -> ReadPlan:
    return msgspec.json.decode((await ask(client, PLAN, **fields)).body, type=ReadPlan)


async def pins_of(client: Client) -> list[PinRow]:
    return msgspec.json.decode((await ask(client, LIST)).body, type=PinList).pins


async def bodies_of(client: Client, plan: ReadPlan, roles: str = "follower", max_bytes: int = 1 << 20) -> list[bytes]:
    """Return every message of topic T1 in the log, slice by slice, in the order of the log; verify the chain."""
    topic = next(topic for topic in plan.topics if topic.name == "T1")
    queues = {queue.id: queue for queue in topic.queues}
    stops = [*(cut.position for cut in plan.cuts[1:]), plan.commit]
    bodies: list[bytes] = []
    for cut, stop in zip(plan.cuts, stops, strict=True):
        position, chain = cut.position, cut.previous_chain
        while position < stop:
            fields = {"start": str(position), "end": str(stop), "roles": roles, "maxBytes": str(max_bytes)}
            answer = await ask(client, READ, **fields, minCommit=str(plan.commit))
            assert (answer.ext["group"], answer.ext["role"] in roles) == (plan.group, True)
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


async def test_ranges_of_a_follower_have_all_acknowledged_messages_without_the_leader(group: BrokerGroup) -> None:
    leader, (follower, _) = await group.leader(), await group.followers()
    sent = [b"%d" % number + bytes(9000) for number in range(300)]
    senders = [await client_of(follower) for _ in range(20)]
    for at in range(0, len(sent), len(senders)):
        await asyncio.gather(*map(client_send, senders, sent[at : at + len(senders)]))
    client = await client_of(follower)  # not earlier: the node closes a connection that is silent for seconds
    plan = await plan_from(client, minCommit=await commit_of(client), sliceBytes="100000", times="true")
    assert (plan.group, plan.ordinal, plan.node, plan.role) == ("broker-a", 0, follower.config.node_id, "follower")
    assert len(plan.cuts) > 10
    for max_bytes in (1 << 20, 1):
        assert sorted(await bodies_of(client, plan, max_bytes=max_bytes)) == sorted(sent)
    assert follower.counter.range_bytes_follower > 2 * sum(map(len, sent))
    assert [broker.counter.range_bytes_leader for broker in group.brokers.values()] == [0, 0, 0]
    assert any(cut.min_time is not None and cut.max_time is not None for cut in plan.cuts)
    assert leader.counter.range_reads == 0


async def client_send(client: Client, body: bytes) -> None:
    answer = await client.send(body)
    assert answer.code == 0, answer.remark


async def test_a_node_whose_role_the_reader_does_not_accept_refuses(group: BrokerGroup) -> None:
    leader, (follower, _) = await group.leader(), await group.followers()
    of_leader, of_follower = await client_of(leader), await client_of(follower)
    await client_send(of_leader, b"x")
    commit = await commit_of(of_leader)
    for code, fields in ((PLAN, {}), (READ, {"start": "0", "end": "1"})):
        answer = await of_leader.call(code, fields)
        assert_refused(answer, ResponseCode.READ_ROLE_REFUSED, "is the leader of group broker-a")
        for roles, refusal in (
            ("leader,learner", ResponseCode.READ_ROLE_REFUSED),
            ("boss", ResponseCode.INVALID_PARAMETER),
        ):
            assert (await of_follower.call(code, {**fields, "roles": roles})).code == refusal
    assert leader.counter.range_reads_refused == 2
    await ask(of_leader, PLAN, roles=ANY)
    await ask(of_follower, PLAN, minCommit=commit)  # it has applied the message
    chosen = {"roles": "follower,learner", "consumerGroup": "TOOLS_CONSUMER"}
    assert (await of_leader.pull(0, **chosen)).code == ResponseCode.READ_ROLE_REFUSED
    assert bodies(await of_follower.pull(0, **chosen)) == [b"x"]
    for start, end in (("10", "200"), ("-1", "10"), ("20", "10")):
        answer = await of_follower.call(READ, {"start": start, "end": end})
        assert answer.code == ResponseCode.INVALID_PARAMETER, (start, end)


async def test_a_reader_with_the_identity_of_another_group_is_refused(group: BrokerGroup) -> None:
    await client_send(await client_of(await group.leader()), b"x")
    follower = (await group.followers())[0]
    client = await client_of(follower)
    identity = ""
    async with asyncio.timeout(20):
        while not identity or not follower.node.group_identity:
            identity = (await client.call(COMMIT)).ext.get("groupIdentity", "")
    bound = pull_ext("T1", consumerGroup="TOOLS_CONSUMER", minCommit="0")
    for code, fields in ((PLAN, {}), (READ, {"start": "0", "end": "1"}), (361, bound)):
        await ask(client, code, **fields, groupIdentity=identity)
        answer = await client.call(code, {**fields, "groupIdentity": "0" * 32})
        assert_refused(answer, ResponseCode.READ_BEHIND, "founded twice under the same name")


async def test_a_plan_has_only_the_current_incarnation_of_a_topic(tmp_path: Path) -> None:
    async with running(node_config(tmp_path), bootstrap=True) as broker:
        client = await client_of(broker)
        await client_send(client, b"old")
        await ask(client, 215, topic="T1")
        await client_send(client, b"new")
        plan = await plan_from(client, roles=ANY, topics="T1,unknown", minCommit=await commit_of(client))
        assert [topic.name for topic in plan.topics] == ["T1"]
        assert await bodies_of(client, plan, ANY) == [b"new"]
        timed = await plan_from(client, roles=ANY, times="true")
        (record,) = list(iter_records((await client.pull(0)).body))
        assert timed.cuts[0].max_time == record.store_timestamp


async def test_pins_are_replicated_listed_renewed_by_reads_and_given_up(group: BrokerGroup) -> None:
    leader = await group.understanding()
    follower, other = await group.followers()
    client = await client_of(follower)
    await client_send(client, b"x")
    for position in ("100", "50"):
        pinned = await ask(client, PIN, name="job-1", position=position, leaseMillis="40")
        assert pinned.ext["position"] == position
    (row,) = await pins_of(await client_of(other))
    assert (row.name, row.position, row.lease) == ("job-1", 50, 40)
    async with asyncio.timeout(10):
        while follower.machine.state.table(PINS).get("job-1") is None:
            await client.call(COMMIT)
        while leader.machine.state.table(PINS).get("job-1").expires_ms == row.expires:
            await ask(client, READ, start="0", end="0", pin="job-1")
    for _ in range(2):
        await ask(client, UNPIN, name="job-1")
        assert await pins_of(client) == []
    for invalid, code in (
        ({"name": ""}, ResponseCode.INVALID_PARAMETER),
        ({"name": "x" * 300}, ResponseCode.INVALID_PARAMETER),
        ({"leaseMillis": "3600001"}, ResponseCode.INVALID_PARAMETER),
        ({"leaseMillis": "0"}, ResponseCode.INVALID_PARAMETER),
        ({"position": "-1"}, ResponseCode.READ_TRIMMED),
    ):
        assert (await client.call(PIN, {"name": "x", "position": "0", **invalid})).code == code
