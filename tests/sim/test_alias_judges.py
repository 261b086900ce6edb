"""Judges of write aliases pass right histories and name wrong ones."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from dledger_remoting.route import MASTER_ID, BrokerData, QueueData, TopicRouteData
from dledger_remoting.topics import PERM_READ_WRITE, PERM_WRITE
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.name_server import check_aliases
from dledger_sim.brokers.stock_clients import Place, places_in
from dledger_sim.brokers.stock_sends import StockSends
from dledger_sim.log.campaign import judge
from dledger_sim.log.cases import Case
from dledger_sim.log.invariants import Violation

pytestmark = pytest.mark.long

ALIAS = Place("broker-a@n2", "n2", 0, alias=2)
QUEUES = 4


def stored(queue_id: int, position: int) -> Answer:
    return Answer(0, {"queueId": str(queue_id), "queueOffset": "5", "msgId": f"{position:032X}"}, b"", "")


def route(alias_port: int = 10934, perm: int = PERM_WRITE) -> TopicRouteData:
    return TopicRouteData(
        [QueueData("broker-a", 2, 2, PERM_READ_WRITE), QueueData("broker-a@n2", 0, 1, perm)],
        [
            BrokerData("broker-a", "c", {MASTER_ID: "127.0.0.1:10911", 3: "127.0.0.1:10931"}),
            BrokerData("broker-a@n2", "c", {MASTER_ID: f"127.0.0.1:{alias_port}"}),
        ],
    )


def test_a_send_to_an_alias_is_stored_once_in_the_queue_of_the_aliass_number() -> None:
    sends = StockSends()
    assert sends.acknowledged(ALIAS, QUEUES, stored(2, 100)) == 2
    assert sends.acknowledged(Place("broker-a", "n0", 3, alias=None), QUEUES, stored(3, 200)) == 3
    with pytest.raises(Violation, match="goes to its queue"):
        sends.acknowledged(ALIAS, QUEUES, stored(0, 300))
    with pytest.raises(Violation, match="a message of its own"):
        sends.acknowledged(ALIAS, QUEUES, stored(2, 100))


def test_more_stored_copies_than_sends_are_a_violation() -> None:
    sends = StockSends(attempts=Counter({7: 2, 9: 1}))
    sends.check_copies(Counter({7: 1}), 0)  # two attempts, two messages
    sends.check_copies(Counter({7: 1, 9: 1}), 1)
    with pytest.raises(Violation, match="no more often than it was sent"):
        sends.check_copies(Counter({7: 1, 9: 1}), 0)


def test_aliases_of_the_leader_or_with_read_permission_are_a_violation() -> None:
    check_aliases(route())
    assert list(places_in(route())) == [
        Place("broker-a", "n0", 0, None),
        Place("broker-a", "n0", 1, None),
        Place("broker-a@n2", "n2", 0, 2),
    ]
    with pytest.raises(Violation, match="no write alias of the node"):
        check_aliases(route(alias_port=10914))
    with pytest.raises(Violation, match="nobody can read"):
        check_aliases(route(perm=PERM_READ_WRITE))
    readable = msgspec.structs.replace(route().queue_datas[1], read_queue_nums=1)
    with pytest.raises(Violation, match="nobody can read"):
        check_aliases(msgspec.structs.replace(route(), queue_datas=[route().queue_datas[0], readable]))


def test_seeds_send_through_aliases_again_and_read_from_followers() -> None:
    counts: Counter[str] = Counter()
    for seed in (2, 6, 8):
        outcome = judge(Case("aliases", seed, 10.0), "dledger_sim.brokers.lab")
        assert outcome.violation is None
        counts += outcome.counts
    rare = (
        "ok through an alias", "sent to another broker", "request sent on again", "send forgotten and stored again",
        "consumer sent to a follower", "queue not read from the lost node", "leader lost at the end",
    )  # fmt: skip
    assert not [name for name in rare if not counts[name]]
