"""Leases: popped messages stay hidden while heartbeats of their client come, and come again within a bound after."""

import msgspec
import pytest
from served_broker import FakeClient

from dledger.errors import BusyError, NotLeaderError
from dledger_broker.features.leases.commands import LeasedPop, RenewedLease, RenewLeases
from dledger_broker.features.leases.table import LEASES, LeaseTable
from dledger_broker.features.leases.times import NEW_LEADER_S as NEW_LEADER_LEASE_S
from dledger_broker.features.pop.commands import Pop, PopQueueKey, PopRow
from dledger_broker.features.pop.deliveries import Delivery, PopQueue
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_remoting.codes import ResponseCode
from dledger_remoting.headers_pop import LEASE_FIELD
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, encode_heartbeat
from tests.broker.features.pop.pop_calls import FOUND, Popper, lead_anew
from tests.broker.kernel.applied_commands import apply

LENGTH_S = 60.0
LEASE = {LEASE_FIELD: "c", "invisibleTime": str(int(LENGTH_S * 1000))}
"""Fields of a pop under the lease of client `c`."""


def beat(client: FakeClient, client_id: str = "c") -> None:
    """Send a heartbeat of a consumer of CG."""
    assert client.call(34, {}, heartbeat(client_id)).code == 0


def heartbeat(client_id: str = "c") -> bytes:
    return encode_heartbeat(HeartbeatData(client_id, [], [ConsumerData("CG")]))


def live(client: Popper, seconds: float, client_id: str = "c") -> None:
    """Let time pass, with a heartbeat every 10 s."""
    for _ in range(round(seconds / 10)):
        beat(client, client_id)
        client.wait(10)


def other(client: Popper) -> Popper:
    """Return another client of the same broker."""
    return Popper(client.broker, "client/2")


def leases(client: Popper) -> LeaseTable:
    return client.broker.table(LEASES)


def test_messages_of_a_living_client_stay_hidden_and_come_again_once_it_is_dead(client: Popper) -> None:
    client.store(b"a")
    assert client.ask_pop(**LEASE).ext[LEASE_FIELD] == "true"
    live(client, 5 * LENGTH_S)
    lease = leases(client).get("c")
    assert lease is not None
    begun_ms = next(iter(client.queue())).pop_time_ms
    assert lease.until_ms - begun_ms > 5 * LENGTH_S * 1000, "the next leader knows of the heartbeats by the log alone"
    assert client.pop() == []
    client.wait(LENGTH_S - 12)
    assert client.pop() == [], "the last heartbeat came ten seconds before its wait"
    client.wait(4)
    assert client.pop_bodies() == [b"a"]
    assert len(leases(client)) == 0


def test_heartbeats_of_another_client_or_account_renew_nothing(client: Popper) -> None:
    client.store(b"a")
    assert client.pop(**LEASE)
    live(client, LENGTH_S + 10, "d")
    assert client.pop_bodies() == [b"a"]


def test_heartbeats_through_any_connection_renew_a_lease(client: Popper) -> None:
    """The proxy through which the client has popped is gone."""
    client.store(b"a")
    assert client.pop(**LEASE)
    client.is_open = False
    client.broker.service.channel_lost(client)
    live(other(client), 2 * LENGTH_S)
    assert other(client).pop() == []


def test_a_lease_hides_messages_for_three_hours_at_most(client: Popper) -> None:
    client.store(b"a", b"b")
    assert client.pop_bodies(**LEASE, maxMsgNums="1") == [b"a"]
    beat(client)
    for _ in range(3 * 60 - 2):
        client.broker.advance(60.0)
        beat(client)
    assert client.pop_bodies(**LEASE) == [b"b"]
    assert client.pop() == []
    live(client, 130)
    [again] = client.pop()
    assert (again.body, client.ack(again)) == (b"a", FOUND)
    live(client, 2 * LENGTH_S)
    assert client.pop() == [], "the later message is leased for three hours of its own"


def test_leaving_ends_the_leases_of_a_client_at_once_and_of_no_other(client: Popper) -> None:
    client.store(b"a", b"b")
    assert client.pop_bodies(**LEASE, maxMsgNums="1") == [b"a"]
    assert client.pop_bodies(**LEASE | {LEASE_FIELD: "d"}) == [b"b"]
    beat(client)
    assert client.call(35, {"clientID": "c", "producerGroup": "PG"}).code == 0
    client.wait(1)
    assert client.pop() == [], "it has left no consumer group"
    assert client.call(35, {"clientID": "c", "consumerGroup": "CG"}).code == 0
    written = client.broker.memory.log.end
    beat(client)
    assert client.broker.memory.log.end == written
    client.wait(1)
    [again] = client.pop(**LEASE)
    assert (again.body, len(leases(client))) == (b"a", 2)
    live(client, 2 * LENGTH_S)
    assert client.pop_bodies() == [b"b"], "the id may come again"


def test_a_heartbeat_behind_the_leaving_of_its_client_does_not_undo_it(client: Popper) -> None:
    beat(client)
    client.store(b"a")
    assert client.pop(**LEASE)
    client.wait(LENGTH_S / 2)
    client.send(35, {"clientID": "c", "consumerGroup": "CG"})
    client.send(34, {}, heartbeat())
    client.broker.settle()
    client.broker.advance(0.01)
    lead_anew(client.broker)
    client.wait(1)
    assert client.pop_bodies() == [b"a"], "nor does a new leader wait for heartbeats of a client that has left"


def test_an_id_that_no_client_can_have_ends_no_lease_of_an_account(client: Popper) -> None:
    """Nothing but the account's own requests name its leases."""
    client.store(b"a")
    assert client.pop(**LEASE)
    for client_id in ("", "c\0", "x" * 2_000):
        assert client.call(35, {"clientID": client_id, "consumerGroup": "CG"}).code == 0
    client.wait(5)
    assert client.pop() == []


def test_no_client_can_say_what_only_nodes_say_of_leases(client: Popper) -> None:
    client.store(b"a")
    assert client.pop(**LEASE)
    assert client.call(20020, {"owner": "c", "hasLeft": "true"}).code == 0
    client.wait(5)
    assert client.pop() == []


def test_a_later_pop_with_a_shorter_lease_ends_no_earlier_lease(client: Popper) -> None:
    client.store(b"a", b"b")
    assert client.pop_bodies(**LEASE, maxMsgNums="1") == [b"a"]
    assert client.pop_bodies(**LEASE | {"invisibleTime": "2000"}) == [b"b"]
    client.wait(LENGTH_S - 5)
    assert client.pop() == []
    client.wait(7)
    assert sorted(client.pop_bodies()) == [b"a", b"b"]


def test_a_leased_message_is_acknowledged_and_hidden_anew_as_others_are(client: Popper) -> None:
    """A client that hides a message anew has given it up: it comes again although the client lives."""
    client.store(b"a", b"b", b"c")
    first, second, third = client.pop(**LEASE)
    assert client.ack(first) == FOUND
    assert client.hide(second, 20)[0] == FOUND
    live(client, 30)
    assert client.pop_bodies() == [b"b"]
    assert client.ack(third) == FOUND
    assert len(leases(client)) == 0


def test_an_ordered_queue_waits_for_the_client_that_has_its_first_message(client: Popper) -> None:
    client.store(b"a", b"b")
    ordered = {"order": "true", "queueId": "0"}
    assert client.pop_bodies(**LEASE, **ordered, maxMsgNums="1", attemptId="x") == [b"a"]
    live(client, 2 * LENGTH_S)
    assert client.pop(**ordered) == []
    assert client.pop_bodies(**LEASE, **ordered, maxMsgNums="1", attemptId="x") == [b"a"], "the same attempt"
    client.wait(LENGTH_S + 1)
    assert client.pop_bodies(**ordered) == [b"a", b"b"]


def test_a_new_leader_waits_for_heartbeats_before_it_ends_leases(client: Popper) -> None:
    client.store(b"a")
    assert client.pop(**LEASE)
    live(client, LENGTH_S)
    client.wait(LENGTH_S - 12)
    lead_anew(client.broker)
    client.wait(NEW_LEADER_LEASE_S - 2)
    assert client.pop() == []
    live(client, 2 * LENGTH_S)
    assert client.pop() == []
    lead_anew(client.broker)
    client.wait(LENGTH_S + 1)
    assert client.pop_bodies() == [b"a"]


def test_a_heartbeat_in_time_counts_while_the_log_takes_no_renewal(
    client: Popper, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.store(b"a")
    assert client.pop(**LEASE)
    overlay = client.broker.memory.machine.overlay
    stage = overlay.stage_command

    def refuse(command, done, *, privileged=False):
        if isinstance(command, RenewLeases):
            done(BusyError("busy"))
        else:
            stage(command, done, privileged=privileged)

    monkeypatch.setattr(overlay, "stage_command", refuse)
    live(client, 2 * LENGTH_S)
    assert client.pop() == []
    client.wait(LENGTH_S)
    assert client.pop_bodies() == [b"a"]


def test_most_heartbeats_write_nothing(client: Popper) -> None:
    beat(client)
    client.store(b"a")
    assert client.pop(**LEASE)
    before = client.broker.memory.log.end
    beat(client)
    assert client.broker.memory.log.end == before
    client.wait(LENGTH_S / 2)
    beat(client)
    beat(client)
    once = client.broker.memory.log.end
    assert once > before
    beat(client)
    assert client.broker.memory.log.end == once


def test_heartbeats_of_a_client_through_several_nodes_at_once_renew_its_lease_once(
    client: Popper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that loses the leadership before it has proposed a renewal proposes the next one all the same."""
    beat(client)
    client.store(b"a")
    assert client.pop(**LEASE)
    rows: list[RenewedLease] = []
    overlay = client.broker.memory.machine.overlay
    stage = overlay.stage_command

    def note(command, done, *, privileged=False):
        rows.extend(command.rows if isinstance(command, RenewLeases) else ())
        stage(command, done, privileged=privileged)

    monkeypatch.setattr(overlay, "stage_command", note)
    client.wait(LENGTH_S / 2)
    for unready in client.broker.memory.machine.events.unready:
        client.send(34, {}, heartbeat())
        unready(NotLeaderError(None, 1))
    client.broker.settle()
    rows.clear()
    client.wait(LENGTH_S / 2)
    for _ in range(3):
        client.send(34, {}, heartbeat())
    client.broker.settle()
    assert [row.client for row in rows] == ["c"]


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({LEASE_FIELD: ""}, 29, "client id"),
        ({LEASE_FIELD: "x" * 1_025}, 29, "client id of 1025"),
        ({LEASE_FIELD: "c\0app"}, 29, "NUL"),
        ({LEASE_FIELD: "c", "invisibleTime": "300001"}, 29, "300000"),
    ],
)
def test_impossible_leases_are_refused(client: Popper, fields: dict[str, str], code: int, said: str) -> None:
    answer = client.ask_pop(**fields)
    assert (answer.code, said in (answer.remark or "")) == (code, True), answer


def test_no_lease_is_given_while_a_node_does_not_understand_leases(client: Popper) -> None:
    del client.broker.memory.machine.state.activation.since["leases"]
    client.store(b"a")
    answer = client.ask_pop(**LEASE)
    assert (answer.code, "'leases' is not active" in (answer.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
    assert client.pop_bodies() == [b"a"]


def test_a_snapshot_keeps_leases_and_their_messages(client: Popper) -> None:
    client.store(b"a", b"b")
    assert len(client.pop(**LEASE)) == 2
    client.store(b"c")
    assert client.pop_bodies(invisibleTime="60000") == [b"c"]
    state = client.broker.memory.machine.state
    copy = decode_state(list(encode_state(state, 0.0)), 7.0, client.broker.memory.features)
    assert copy.digest() == state.digest()
    table, lease = copy.table(LEASES), leases(client).get("c")
    copied = table.get("c")
    assert copied is not None
    assert lease is not None
    assert (copied.row, copied.deliveries, copied.renewed_at) == (lease.row, 1, 7.0)
    apply(copy, RenewLeases((RenewedLease("c", 5, 0), RenewedLease("nobody", 5, 5))))
    assert (copied.row, len(table)) == (RenewedLease("c", 5, 0), 1)


def test_deletions_end_leases(client: Popper) -> None:
    for end in ("group", "topic"):
        client.broker.put_group()
        client.store(b"a")
        assert client.pop(**LEASE)
        assert len(leases(client)) == 1
        if end == "group":
            assert client.call(207, {"groupName": "CG", "cleanOffset": "true"}).code == 0
        else:
            client.broker.memory.delete_topic("T1")
        client.broker.settle()
        assert len(leases(client)) == 0


def test_a_pop_that_a_trim_has_voided_leases_nothing(client: Popper) -> None:
    client.store(b"a")
    assert client.pop()
    queue = client.queue()
    row = PopRow("T1", queue.created_position, 0, 7, 8, (7,))
    digest = client.broker.memory.machine.digest()
    apply(client.broker.memory.machine.state, LeasedPop(Pop("CG", 1 << 50, 1_000, (row,)), "c"))
    assert (len(leases(client)), client.broker.memory.machine.digest()) == (0, digest)


def test_replicas_that_lease_different_messages_have_different_digests() -> None:
    def digest(client: str) -> int:
        queue = PopQueue(PopQueueKey("CG", "T1", 0), 1, 0)
        queue.add(Delivery(5, (0,), 0, 0, 1_000, client=client))
        return queue.digest

    assert len({digest(""), digest("c"), digest("d")}) == 3


def test_rows_about_a_lease_do_not_change_what_earlier_versions_wrote() -> None:
    pop = Pop("CG", 1, 2, (PopRow("T1", 3, 0, -1, 1, (0,)),))
    assert b"client" not in msgspec.msgpack.encode(pop)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(LeasedPop(pop, "c")), type=LeasedPop) == LeasedPop(pop, "c")
