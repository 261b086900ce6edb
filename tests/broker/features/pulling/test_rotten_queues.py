"""What a client sees of a consume queue's file that has rotted: an error, after which it asks again, then messages."""

from __future__ import annotations

import pytest
from served_broker import FakeClient, ServedBroker, pull_ext, records

from dledger_broker.views.units import UNIT, UNIT_BYTES
from dledger_remoting.command import RemotingCommand
from tests.broker.features.pop.pop_calls import POP, ask, messages, pop_ext, with_group

COUNT = 8
ROTTEN = 3


@pytest.fixture
def rotten(broker: ServedBroker, client: FakeClient) -> ServedBroker:
    """T1's queue 0 with its units on the disk, one of them beyond the log."""
    with_group(broker)
    for number in range(COUNT):
        client.send_message("T1", b"%d" % number, properties="TAGS\x01a\x02color\x01red\x02")
    memory = broker.memory
    memory.flush_views()
    memory.env.advance(5)
    assert memory.queue("T1").view.tail_start == COUNT
    file = memory.disk.open("consumequeue/T1/0/" + f"{0:020d}")
    file.pwrite(UNIT.pack(1 << 40, 200, 0), ROTTEN * UNIT_BYTES)
    pull = ask(client, 11, pull_ext("T1", offset=ROTTEN - 1, maxMsgNums="1"))  # opens the file for the event loop
    assert [record.body for record in records(pull)] == [b"%d" % (ROTTEN - 1)]
    return broker


def mend(broker: ServedBroker) -> None:
    broker.memory.run(broker.memory.machine.mending.mend_noticed())


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"subscription": "a"},
        {"subscription": "b"},
        {"subscription": "color = 'red'", "expressionType": "SQL92", "sysFlag": "6"},
        {"sysFlag": "6", "suspendTimeoutMillis": "15000"},
    ],
    ids=str,
)
def test_a_pull_is_to_come_again_until_the_unit_is_written_anew(
    rotten: ServedBroker, client: FakeClient, fields: dict[str, str], cold: bool
) -> None:
    rotten.memory.node.cold = cold

    def pull() -> RemotingCommand:
        return ask(client, 11, pull_ext("T1", offset=ROTTEN, **fields))

    refused = pull()
    assert refused.code == 2
    assert "try again" in (refused.remark or "")
    mend(rotten)
    answer = pull()
    if fields.get("subscription") == "b":
        assert (answer.code, answer.ext["nextBeginOffset"]) == (20, str(COUNT))
    else:
        assert [record.body for record in records(answer)] == [b"%d" % number for number in range(ROTTEN, COUNT)]


@pytest.mark.parametrize("cold", [False, True])
def test_a_pop_is_to_come_again_until_the_unit_is_written_anew(
    rotten: ServedBroker, client: FakeClient, cold: bool
) -> None:
    rotten.memory.node.cold = cold
    ext = pop_ext(queueId="0", initMode="0")
    refused = ask(client, POP, ext)
    assert refused.code == 2
    mend(rotten)
    assert [message.body for message in messages(ask(client, POP, ext))] == [b"%d" % number for number in range(COUNT)]


def test_a_follower_passes_the_pull_on(
    rotten: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[int] = []
    monkeypatch.setattr(
        "dledger_broker.frontend.forwarding.Forwarder.pass_on", lambda _forwarder, request: passed.append(request.code)
    )
    rotten.memory.node.step_down()
    rotten.settle()
    client.send(11, pull_ext("T1", offset=ROTTEN))
    rotten.settle()
    assert passed == [11]
    mend(rotten)
    assert len(records(ask(client, 11, pull_ext("T1", offset=ROTTEN)))) == COUNT - ROTTEN
