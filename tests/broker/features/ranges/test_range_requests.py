"""Range reads that a node cannot serve, and how long it tries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from served_broker import NODE_ID, MakeBroker, ServedBroker, make_served_broker

from dledger.store.ranges import EntryRun, LogCut
from dledger.types import Membership, ReplicaId
from dledger_broker.features.group_settings.settings import GroupSettings
from dledger_broker.features.ranges.requests import CATCH_UP_S
from dledger_broker.kernel.requests import Buffer
from dledger_broker.testing import BrokerInMemory
from dledger_remoting.codes import ResponseCode
from dledger_remoting.range_reads import ReadPlan
from dledger_remoting.record import scan_records


def founded(broker: ServedBroker, ordinal: int = 0) -> ServedBroker:
    GroupSettings(broker.memory.machine, broker.memory.env, replace(broker.config, group_ordinal=ordinal))
    broker.settle()
    return broker


def test_what_a_node_has_not_applied_is_refused_after_a_moment(broker: ServedBroker):
    client = founded(broker).client()
    far = str(1 << 40)
    plan = client.call_from_disk(20010, {"roles": "leader", "minCommit": far})
    assert plan.code == ResponseCode.READ_BEHIND
    assert broker.memory.env.now() >= CATCH_UP_S
    assert client.call_from_disk(20011, {"roles": "leader", "start": "0", "end": far}).code == ResponseCode.READ_BEHIND


def test_a_plan_waits_for_the_ordinal_and_says_so(broker: ServedBroker):
    client = broker.client()
    answer = client.call_from_disk(20010, {"roles": "leader"})
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "ordinal" in (answer.remark or "")
    founded(broker, 5)
    assert msgspec.json.decode(client.call_from_disk(20010, {"roles": "leader"}).body, type=ReadPlan).ordinal == 5


def test_a_list_of_roles_is_short(broker: ServedBroker):
    client = founded(broker).client()
    assert client.call_from_disk(20010, {"roles": ",".join(["leader"] * 3)}).code == ResponseCode.SUCCESS
    assert client.call_from_disk(20010, {"roles": ",".join(["leader"] * 300)}).code == ResponseCode.INVALID_PARAMETER


def test_a_plan_names_a_topic_once_however_often_it_is_asked_for(broker: ServedBroker):
    """A request of 16 MB would make an answer of gigabytes."""
    answer = founded(broker).client().call_from_disk(20010, {"roles": "leader", "topics": "T1,T1," * 1000})
    assert [topic.name for topic in msgspec.json.decode(answer.body, type=ReadPlan).topics] == ["T1"]


def test_the_times_of_slices_cover_their_records_even_where_a_leaders_clock_was_behind(make_broker: MakeBroker):
    broker = founded(make_broker())
    client = broker.client()
    for leader in range(3):
        for _ in range(5):
            broker.advance(0.5)
            client.send_message("T1", bytes(30_000))
        broker.memory.node.step_down()
        broker.memory.env._now -= 4 * leader
        broker.memory.node.lead()
        broker.settle()
    plan = msgspec.json.decode(
        client.call_from_disk(20010, {"roles": "leader", "times": "true", "sliceBytes": "65536"}).body, type=ReadPlan
    )
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


def test_a_range_that_is_no_longer_kept_says_so(broker: ServedBroker):
    client = founded(broker).client()
    client.send_message("T1")
    broker.memory.node.trim(broker.memory.node.snapshot())
    answer = client.call_from_disk(20011, {"roles": "leader", "start": "0", "end": "100"})
    assert answer.code == ResponseCode.READ_TRIMMED
    assert client.call(20013, {"name": "late", "position": "0"}).code == ResponseCode.READ_TRIMMED


def test_a_log_that_is_trimmed_while_it_is_planned_is_planned_again(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
):
    """Cuts that begin behind what the plan says, or none at all, would pass for all there is."""
    client, node = founded(broker).client(), broker.memory.node
    client.send_message("T1")
    real_cuts = node.cuts

    async def cuts(start: int, end: int, slice_bytes: int) -> list[LogCut]:
        node.trim(node.snapshot())
        return await real_cuts(start, end, slice_bytes)

    monkeypatch.setattr(node, "cuts", cuts)
    answer = client.call_from_disk(20010, {"roles": "leader"})
    assert answer.code == ResponseCode.READ_BEHIND
    monkeypatch.undo()
    client.send_message("T1")
    assert client.call_from_disk(20010, {"roles": "leader"}).code == ResponseCode.SUCCESS


def test_a_node_without_a_vote_serves_readers_that_take_learners(make_broker: MakeBroker):
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
        assert refused.code == ResponseCode.READ_ROLE_REFUSED
        assert f"is the {role} of group" in (refused.remark or "")


def test_what_was_read_goes_to_the_socket_without_being_copied(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch):
    client = founded(broker).client()
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
    assert client.call_from_disk(20011, {"roles": "leader", "start": "0", "end": "100"}).body == data
    assert any(part is data for part in given)


def test_ranges_are_held_back_and_cut_smaller_while_sends_need_the_cores(make_broker: MakeBroker):
    least = 1 << 20
    broker = founded(make_broker(busy_range_bytes_per_s=least))
    client, env = broker.client(), broker.memory.env

    def read_all() -> int:
        """In how many answers everything came."""
        end, position, answers = broker.memory.machine.applied_position, 0, 0
        while position < end:
            env.core_wait_s += 0.1
            range_ = {"roles": "leader", "start": str(position), "end": str(end)}
            position = int(client.call_from_disk(20011, range_).ext["end"])
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
        client.call_from_disk(20011, {"roles": "leader", "start": "0", "end": "0"})
    began = env.now()
    many = read_all()
    assert env.now() - began > 0.5, "held until the sends are a while ago"
    assert many > 2 * few
    assert broker.counters.range_reads_held > 2
