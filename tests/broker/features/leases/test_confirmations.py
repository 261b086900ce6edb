"""Confirmations: a lease begins once its messages have reached their client. Without that, they come again."""

import pytest

from dledger.errors import BusyError
from dledger_broker.features.confirmations.commands import ConfirmLease, DeliveryRow
from dledger_broker.features.leases.table import LEASES, LeaseTable
from dledger_broker.features.pop.leasing import UNCONFIRMED_MS
from dledger_broker.features.pop.revival import NEW_LEADER_S
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_remoting.codes import ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.headers_pop import CONFIRMS_FIELD, LEASE_FIELD, UNCONFIRMED
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, encode_heartbeat
from dledger_remoting.pop import deliveries_info
from tests.broker.features.pop.pop_calls import FOUND, NO_MESSAGE, Popped, Popper, lead_anew
from tests.broker.kernel.applied_commands import apply

CONFIRM = 20021
LENGTH_S = 60.0
UNCONFIRMED_S = UNCONFIRMED_MS / 1000
LATER = {LEASE_FIELD: "c", CONFIRMS_FIELD: "true", "invisibleTime": str(int(LENGTH_S * 1000))}
"""Fields of a pop of client `c`, whose lease begins with a confirmation."""


def live(client: Popper, seconds: float) -> None:
    """Let time pass, with a heartbeat of `c` every 5 s."""
    body = encode_heartbeat(HeartbeatData("c", [], [ConsumerData("CG")]))
    for _ in range(round(seconds / 5)):
        assert client.call(34, {}, body).code == 0
        client.wait(5)


def confirm_ext(*messages: Popped, **fields: str) -> dict[str, str]:
    rows = dict.fromkeys((one.point.retry, one.point.queue_id, one.point.pop_time_ms) for one in messages)
    return {
        "consumerGroup": "CG",
        "topic": "T1",
        "clientId": "c",
        "invisibleTime": str(int(LENGTH_S * 1000)),
        "deliveries": deliveries_info(rows),
        **fields,
    }


def confirm(client: Popper, *messages: Popped, **fields: str) -> RemotingCommand:
    return client.call(CONFIRM, confirm_ext(*messages, **fields))


def leases(client: Popper) -> LeaseTable:
    return client.broker.table(LEASES)


def test_messages_that_are_never_confirmed_come_again_although_their_client_lives(client: Popper) -> None:
    client.store(b"a")
    answer = client.ask_pop(**LATER)
    assert (answer.ext[LEASE_FIELD], answer.ext["invisibleTime"]) == (UNCONFIRMED, str(UNCONFIRMED_MS))
    live(client, UNCONFIRMED_S - 5)
    assert client.pop() == []
    live(client, 10)
    assert client.pop_bodies() == [b"a"]


def test_a_confirmed_lease_lasts_while_its_client_lives_and_ends_after_it(client: Popper) -> None:
    client.store(b"a")
    messages = client.pop(**LATER)
    client.wait(UNCONFIRMED_S - 2)
    assert confirm(client, *messages).code == 0
    live(client, 3 * LENGTH_S)
    assert client.pop() == []
    client.wait(LENGTH_S + 1)
    assert client.pop_bodies() == [b"a"]
    assert len(leases(client)) == 0


def test_messages_of_a_retry_topic_are_confirmed_as_others(client: Popper) -> None:
    client.store(b"a")
    assert client.pop(**LATER)
    client.wait(UNCONFIRMED_S + 1)
    messages = client.pop(**LATER)
    assert [one.real_topic for one in messages] != ["T1"]
    assert confirm(client, *messages).code == 0
    live(client, 2 * LENGTH_S)
    assert client.pop() == []
    assert client.ack(messages[0]) == FOUND
    assert len(leases(client)) == 0


def test_a_repeated_confirmation_changes_nothing(client: Popper) -> None:
    client.store(b"a", b"b")
    first = client.pop(**LATER, maxMsgNums="1")
    second = client.pop(**LATER)
    assert confirm(client, *first, *second).code == 0
    written = client.broker.memory.log.end
    assert confirm(client, *first).code == 0
    assert client.broker.memory.log.end == written
    lease = leases(client).get("c")
    assert lease is not None
    assert lease.deliveries == 2
    assert [client.ack(one) for one in first + second] == [FOUND, FOUND]
    assert len(leases(client)) == 0


def test_confirmations_that_cross_lease_a_delivery_once(client: Popper) -> None:
    client.store(b"a")
    messages = client.pop(**LATER)
    opaques = [client.send(CONFIRM, confirm_ext(*messages)) for _ in range(2)]
    client.broker.settle()
    assert [client.answered(opaque).code for opaque in opaques] == [0, 0]
    assert client.ack(messages[0]) == FOUND
    assert len(leases(client)) == 0


def test_a_confirmation_behind_the_end_of_the_invisible_time_has_no_effect(client: Popper) -> None:
    client.store(b"a")
    messages = client.pop(**LATER)
    client.wait(UNCONFIRMED_S + 1)
    assert confirm(client, *messages).code == NO_MESSAGE
    [again] = client.pop()
    assert (again.body, len(leases(client))) == (b"a", 0)


def test_a_confirmation_behind_acknowledgements_leases_what_is_left(client: Popper) -> None:
    client.store(b"a", b"b")
    messages = client.pop(**LATER)
    assert client.ack(messages[0]) == FOUND
    assert confirm(client, *messages).code == 0
    live(client, LENGTH_S)
    assert client.pop() == []
    client.wait(LENGTH_S + 1)
    assert client.pop_bodies() == [b"b"]
    [message] = client.pop(**LATER) or [None]
    assert message is None
    assert confirm(client, *messages).code == NO_MESSAGE


def test_a_message_that_was_hidden_anew_is_not_leased_by_a_late_confirmation(client: Popper) -> None:
    client.store(b"a")
    messages = client.pop(**LATER)
    assert client.hide(messages[0], 10)[0] == FOUND
    assert confirm(client, *messages).code == NO_MESSAGE
    live(client, 15)
    assert client.pop_bodies() == [b"a"]


def test_a_confirmation_counts_from_its_arrival_while_the_log_is_slow(
    client: Popper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the leader proposes to deliver messages again whose lease is on its way to a majority."""
    client.store(b"a")
    messages = client.pop(**LATER)
    client.wait(UNCONFIRMED_S - 1)
    machine, held = client.broker.memory.machine, []
    stage = machine.stage_command

    def hold(command, done, *, privileged=False):
        if isinstance(command, ConfirmLease):
            held.append((command, done))
        else:
            stage(command, done, privileged=privileged)

    monkeypatch.setattr(machine, "stage_command", hold)
    opaque = client.send(CONFIRM, confirm_ext(*messages))
    client.broker.settle()
    client.wait(5)
    assert client.pop() == []
    [(command, done)] = held
    stage(command, done)
    client.broker.settle()
    assert client.answered(opaque).code == 0
    live(client, LENGTH_S)
    assert client.pop() == []


def test_a_confirmation_that_the_log_refuses_leaves_the_invisible_time_as_it_was(
    client: Popper, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.store(b"a")
    messages = client.pop(**LATER)

    def refuse(command, done, *, privileged=False):
        done(BusyError("busy"))

    with monkeypatch.context() as patched:
        patched.setattr(client.broker.memory.machine, "stage_command", refuse)
        assert confirm(client, *messages).code == ResponseCode.SYSTEM_BUSY
    live(client, UNCONFIRMED_S + 5)
    assert client.pop_bodies() == [b"a"]


def test_a_confirmation_reaches_the_next_leader_in_time(client: Popper) -> None:
    """The invisible time runs out while no node leads."""
    client.store(b"a")
    messages = client.pop(**LATER)
    client.wait(UNCONFIRMED_S - 1)
    lead_anew(client.broker)
    client.wait(NEW_LEADER_S - 1)
    assert confirm(client, *messages).code == 0
    live(client, 2 * LENGTH_S)
    assert client.pop() == []


def test_an_unconfirmed_message_comes_again_at_the_next_leader(client: Popper) -> None:
    client.store(b"a")
    assert client.pop(**LATER)
    lead_anew(client.broker)
    live(client, UNCONFIRMED_S + 5)
    assert client.pop_bodies() == [b"a"]


def test_a_repeated_attempt_in_order_is_confirmed_in_place_of_the_first(client: Popper) -> None:
    client.store(b"a", b"b")
    ordered = {"order": "true", "queueId": "0", "maxMsgNums": "1"}
    lost = client.pop(**LATER, **ordered, attemptId="x")
    got = client.pop(**LATER, **ordered, attemptId="x")
    assert [one.body for one in got] == [b"a"]
    assert confirm(client, *lost).code == NO_MESSAGE, "a late confirmation of the answer that was lost"
    assert confirm(client, *got).code == 0
    live(client, 2 * LENGTH_S)
    assert client.pop(**ordered) == []
    again = client.pop(**LATER, **ordered, attemptId="x")
    assert ([one.body for one in again], len(leases(client))) == ([b"a"], 0)
    live(client, UNCONFIRMED_S + 5)
    assert [one.body for one in client.pop(**ordered)] == [b"a"], "the third answer was lost"


def test_groups_that_do_not_know_confirmations_lease_at_once(client: Popper) -> None:
    del client.broker.memory.machine.state.activation.since["confirmations"]
    client.store(b"a")
    refused = client.call(CONFIRM, confirm_ext(deliveries="0 0 1"))
    assert (refused.code, "'confirmations' is not active" in (refused.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
    answer = client.ask_pop(**LATER)
    assert (answer.ext[LEASE_FIELD], answer.ext["invisibleTime"]) == ("true", str(int(LENGTH_S * 1000)))
    live(client, 2 * LENGTH_S)
    assert client.pop() == []


def test_a_proxy_that_does_not_confirm_gets_leases_at_once(client: Popper) -> None:
    client.store(b"a")
    assert client.ask_pop(**{**LATER, CONFIRMS_FIELD: "false"}).ext[LEASE_FIELD] == "true"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"clientId": ""}, "client id"),
        ({"clientId": "c\0app"}, "NUL"),
        ({"invisibleTime": "300001"}, "1000..300000"),
        ({"invisibleTime": "0"}, "1000..300000"),
        ({"deliveries": ""}, "0 rows"),
        ({"deliveries": ";".join(["0 0 1"] * 51)}, "51 rows"),
        ({"deliveries": "0 0"}, "retry queue pop time"),
        ({"deliveries": "7 0 1"}, "retry queue pop time"),
    ],
)
def test_impossible_confirmations_are_refused(client: Popper, fields: dict[str, str], said: str) -> None:
    answer = client.call(CONFIRM, confirm_ext(deliveries="0 0 1") | fields)
    assert (answer.code, said in (answer.remark or "")) == (ResponseCode.INVALID_PARAMETER, True), answer


def test_a_snapshot_keeps_confirmed_leases_and_unconfirmed_messages(client: Popper) -> None:
    client.store(b"a", b"b")
    first = client.pop(**LATER, maxMsgNums="1")
    assert client.pop(**LATER)
    assert confirm(client, *first).code == 0
    state = client.broker.memory.machine.state
    copy = decode_state(list(encode_state(state, 0.0)), 7.0, client.broker.memory.features)
    assert copy.digest() == state.digest()
    lease = copy.table(LEASES).get("c")
    assert lease is not None
    assert lease.deliveries == 1


def test_rows_of_another_creation_of_the_topic_lease_nothing(client: Popper) -> None:
    client.store(b"a")
    [message] = client.pop(**LATER)
    state = client.broker.memory.machine.state
    created, digest = client.queue().created_position, state.digest()
    row = DeliveryRow("T1", created + 1, 0, message.point.pop_time_ms)
    apply(state, ConfirmLease("c", "CG", 1 << 50, 60_000, (row,)))
    assert (len(leases(client)), state.digest()) == (0, digest)
    apply(state, ConfirmLease("c", "CG", 1 << 50, 60_000, (row._replace(created_position=created),)))
    assert len(leases(client)) == 1
    assert state.digest() != digest
