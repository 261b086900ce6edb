"""The private names of PySyncObj that the engine uses exist, and mean what the engine assumes."""

import re
from importlib.metadata import requires
from types import CodeType

import pytest
from pysyncobj.node import Node
from pysyncobj.version import VERSION
from stock_pysyncobj import NO_OP, Stock

from dledger.engines.pysyncobj.library import INTERNALS, REPLACED, State, private_module


def _names(code: CodeType) -> set[str]:
    """Return all global and attribute names in a piece of code and the code nested in it."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_names, inner))


@pytest.fixture
def stock() -> Stock:
    return Stock("b", "c")


@pytest.fixture
def leader(stock: Stock) -> Stock:
    stock.lead()
    return stock


def test_the_extra_asks_for_versions_that_were_tried() -> None:
    (wanted,) = {
        line.partition(";")[0].strip() for line in requires("dledger-mq") or [] if line.startswith("pysyncobj")
    }
    assert set(wanted.removeprefix("pysyncobj").split(",")) == {"<0.4", ">=0.3.17"}
    assert tuple(map(int, VERSION.split("."))) >= (0, 3, 17)


@pytest.mark.parametrize("name", INTERNALS)
def test_every_used_internal_of_syncobj_exists(stock: Stock, name: str) -> None:
    assert stock.internal(name) is not INTERNALS


@pytest.mark.parametrize("name", REPLACED)
def test_syncobj_uses_every_replaced_global_by_its_name(name: str) -> None:
    module = private_module()
    assert hasattr(module, name)
    methods = [value for value in vars(module.SyncObj).values() if hasattr(value, "__code__")]
    assert any(name in _names(method.__code__) for method in methods)


def test_every_private_copy_of_the_module_is_independent() -> None:
    import pysyncobj.syncobj as shared

    one, other = private_module(), private_module()
    assert one is not other
    assert one.SyncObj is not shared.SyncObj
    one.__dict__["monotonicTime"] = None
    assert other.monotonicTime is shared.monotonicTime is not None


def test_the_engine_uses_only_the_listed_internals_of_syncobj() -> None:
    """The engine uses no private name of `SyncObj` beyond `INTERNALS`."""
    from dledger.engines.pysyncobj import library

    with open(library.__file__) as file:
        text = file.read()
    used = {name.removeprefix("_SyncObj") for name in re.findall(r"\b_SyncObj__\w+", text)}
    used |= set(re.findall(r"self\._sync_obj\.(_[a-z]\w+)", text))
    assert used == set(INTERNALS)


def test_syncobj_campaigns_once_its_election_deadline_is_past(stock: Stock) -> None:
    stock.set_internal("__raftElectionDeadline", stock.now + 1000.0)
    assert stock.tick(900.0) == []
    stock.set_internal("__raftElectionDeadline", float("-inf"))
    said = stock.tick()
    assert sorted(to for to, _ in said) == ["b", "c"]
    expected = {"type": "request_vote", "term": 1, "last_log_index": 1, "last_log_term": 0}
    assert all(message == expected for _, message in said)


def test_syncobj_answers_only_granted_votes(stock: Stock) -> None:
    ask = {"type": "request_vote", "last_log_index": 1, "last_log_term": 0}
    assert stock.hear("b", term=1, **ask) == [{"type": "response_vote", "term": 1}]
    assert stock.hear("c", term=1, **ask) == []
    assert stock.hear("c", type="request_vote", term=7, last_log_index=-1, last_log_term=-1) == []
    assert stock.object.raftCurrentTerm == 7, "the term is adopted of whom it does not vote for"


def test_syncobj_answers_an_append_with_the_next_index(stock: Stock) -> None:
    answer = stock.follow("b", 1, (1, 0), (2, 1), (3, 1))
    assert answer == {"type": "next_node_idx", "next_node_idx": 4, "reset": False, "success": True}
    refused = stock.follow("b", 1, (9, 1))
    assert (refused["success"], refused["reset"]) == (False, True)


def test_entries_are_sent_from_the_next_index_and_counted_by_the_match_index(leader: Stock) -> None:
    for _ in range(4):
        leader.object._applyCommand(NO_OP, None)
    leader.object._checkCommandsToApply()
    assert leader.log[-1] == (6, 1)
    assert (
        leader.internal("__raftNextIndex").keys() == leader.internal("__raftMatchIndex").keys() == set(_nodes(leader))
    )
    leader.internal("__raftNextIndex")[Node("b")] = 4
    leader.wire.sent.clear()
    leader.internal("__sendAppendEntries")()
    (sent,) = (message for to, message in leader.wire.sent if to == "b")
    assert (sent["prevLogIdx"], [entry[1] for entry in sent["entries"]]) == (3, [4, 5, 6])
    leader.internal("__raftMatchIndex")[Node("b")] = 5
    leader.tick()
    assert leader.object.raftCommitIndex == 5


def test_a_peer_that_disconnects_during_sends_gets_no_more_messages() -> None:
    """The engine's windows rest on this: it reports a peer with a full window as disconnected."""
    stock = Stock("b", "c", batch_bytes=1)
    stock.lead()
    stock.object._applyCommand(NO_OP, None)
    stock.object._checkCommandsToApply()
    stock.wire.sent.clear()
    stock.wire._onNodeDisconnected(stock.nodes["b"])
    stock.internal("__sendAppendEntries")()
    assert {to for to, _ in stock.wire.sent} == {"c"}


def test_syncobj_counts_new_members_at_once_and_read_only_ones_never(leader: Stock) -> None:
    leader.set_internal("__otherNodes", {leader.nodes["b"], leader.nodes["c"], Node("d"), Node("e")})
    for name in "de":
        leader.internal("__raftMatchIndex")[Node(name)] = 0
        leader.internal("__lastResponseTime")[Node(name)] = leader.now
    leader.internal("__raftMatchIndex")[Node("b")] = 2
    leader.tick()
    assert leader.object.raftCommitIndex == 1, "two of five are no majority"
    leader.set_internal("__readonlyNodes", {Node("d")})
    leader.internal("__raftMatchIndex")[Node("d")] = 2
    leader.set_internal("__otherNodes", {leader.nodes["b"], leader.nodes["c"], Node("e"), Node("f")})
    leader.internal("__raftMatchIndex")[Node("f")] = 0
    leader.internal("__lastResponseTime")[Node("f")] = leader.now
    leader.tick()
    assert leader.object.raftCommitIndex == 1, "a read-only node counts for nothing"
    leader.internal("__raftMatchIndex")[Node("e")] = 2
    leader.tick()
    assert leader.object.raftCommitIndex == 2


def test_a_leader_without_responses_of_a_majority_steps_down(leader: Stock) -> None:
    leader.hear("b", type="next_node_idx", next_node_idx=0, reset=False, success=False)
    matches = dict(leader.internal("__raftMatchIndex"))
    assert set(matches.values()) == {0}, "a sign of life acknowledges nothing"
    for node in _nodes(leader):
        leader.internal("__lastResponseTime")[node] = leader.now - 1000.0
    leader.tick()
    assert not leader.object._isLeader()


def test_leadership_can_be_laid_down(leader: Stock) -> None:
    leader.set_internal("__raftLeader", None)
    leader.internal("__setState")(State.FOLLOWER)
    assert not leader.object._isLeader()
    assert leader.object._getLeader() is None
    assert leader.object.raftCurrentTerm == 1


def test_applying_is_a_step_of_its_own(stock: Stock) -> None:
    stock.set_internal("__applyLogEntries", lambda: False)
    stock.lead()
    stock.internal("__raftMatchIndex")[Node("b")] = 2
    stock.tick()
    assert stock.object.raftCommitIndex == 2
    assert stock.object.raftLastApplied == 1


def _nodes(stock: Stock) -> list[Node]:
    return list(stock.nodes.values())
