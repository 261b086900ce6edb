"""What the engine uses of PySyncObj beyond its public interface is there, and means what the engine takes it for."""

import re
from importlib.metadata import requires
from types import CodeType

import pytest
from pysyncobj.node import Node
from pysyncobj.version import VERSION
from stock_pysyncobj import NO_OP, Stock

from dledger.engines.pysyncobj.library import INTERNALS, REPLACED, State, private_module


def _names(code: CodeType) -> set[str]:
    """All names that a piece of code and those in it ask their module for."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def test_the_extra_asks_for_versions_that_were_tried() -> None:
    (wanted,) = {
        line.partition(";")[0].strip() for line in requires("dledger-mq") or [] if line.startswith("pysyncobj")
    }
    assert set(wanted.removeprefix("pysyncobj").split(",")) == {"<0.4", ">=0.3.17"}
    assert tuple(map(int, VERSION.split("."))) >= (0, 3, 17)


@pytest.mark.parametrize("name", INTERNALS)
def test_it_is_there(name: str) -> None:
    stock = Stock("b", "c")
    assert stock.internal(name) is not INTERNALS


@pytest.mark.parametrize("name", REPLACED)
def test_what_is_replaced_is_asked_for_by_its_name(name: str) -> None:
    module = private_module()
    assert hasattr(module, name)
    methods = [value for value in vars(module.SyncObj).values() if hasattr(value, "__code__")]
    assert any(name in _names(method.__code__) for method in methods)


def test_every_copy_of_the_module_is_its_own() -> None:
    import pysyncobj.syncobj as shared

    one, other = private_module(), private_module()
    assert one is not other
    assert one.SyncObj is not shared.SyncObj
    one.__dict__["monotonicTime"] = None
    assert other.monotonicTime is shared.monotonicTime is not None


def test_nothing_else_of_it_is_used() -> None:
    """Of `SyncObj`, beyond names that a `_` does not begin."""
    from dledger.engines.pysyncobj import library

    with open(library.__file__) as file:
        text = file.read()
    used = {name.removeprefix("_SyncObj") for name in re.findall(r"\b_SyncObj__\w+", text)}
    used |= set(re.findall(r"self\._object\.(_[a-z]\w+)", text))
    assert used == set(INTERNALS)


def test_it_campaigns_once_its_deadline_is_past() -> None:
    stock = Stock("b", "c")
    stock.set_internal("__raftElectionDeadline", stock.now + 1000.0)
    assert stock.tick(900.0) == []
    stock.set_internal("__raftElectionDeadline", float("-inf"))
    said = stock.tick()
    assert sorted(to for to, _ in said) == ["b", "c"]
    expected = {"type": "request_vote", "term": 1, "last_log_index": 1, "last_log_term": 0}
    assert all(message == expected for _, message in said)


def test_a_vote_is_answered_or_nothing_is_said() -> None:
    stock = Stock("b", "c")
    ask = {"type": "request_vote", "last_log_index": 1, "last_log_term": 0}
    assert stock.hear("b", term=1, **ask) == [{"type": "response_vote", "term": 1}]
    assert stock.hear("c", term=1, **ask) == []
    assert stock.hear("c", type="request_vote", term=7, last_log_index=-1, last_log_term=-1) == []
    assert stock.object.raftCurrentTerm == 7, "the term is adopted of whom it does not vote for"


def test_an_append_is_answered_by_what_comes_next() -> None:
    stock = Stock("b", "c")
    answer = stock.follow("b", 1, (1, 0), (2, 1), (3, 1))
    assert answer == {"type": "next_node_idx", "next_node_idx": 4, "reset": False, "success": True}
    refused = stock.follow("b", 1, (9, 1))
    assert (refused["success"], refused["reset"]) == (False, True)


def test_entries_are_sent_from_the_next_index_and_counted_by_the_match_index() -> None:
    stock = Stock("b", "c")
    stock.lead()
    for _ in range(4):
        stock.object._applyCommand(NO_OP, None)
    stock.object._checkCommandsToApply()
    assert stock.log[-1] == (6, 1)
    assert stock.internal("__raftNextIndex").keys() == stock.internal("__raftMatchIndex").keys() == set(_nodes(stock))
    stock.internal("__raftNextIndex")[Node("b")] = 4
    stock.wire.sent.clear()
    stock.internal("__sendAppendEntries")()
    (sent,) = (message for to, message in stock.wire.sent if to == "b")
    assert (sent["prevLogIdx"], [entry[1] for entry in sent["entries"]]) == (3, [4, 5, 6])
    stock.internal("__raftMatchIndex")[Node("b")] = 5
    stock.tick()
    assert stock.object.raftCommitIndex == 5


def test_whoever_is_cut_off_while_it_sends_gets_no_more() -> None:
    """Windows rest on that: a peer whose window is full is taken for disconnected."""
    stock = Stock("b", "c", batch_bytes=1)
    stock.lead()
    stock.object._applyCommand(NO_OP, None)
    stock.object._checkCommandsToApply()
    stock.wire.sent.clear()
    stock.wire._onNodeDisconnected(stock.nodes["b"])
    stock.internal("__sendAppendEntries")()
    assert {to for to, _ in stock.wire.sent} == {"c"}


def test_other_members_count_from_when_they_are_set() -> None:
    stock = Stock("b", "c")
    stock.lead()
    stock.set_internal("__otherNodes", {stock.nodes["b"], stock.nodes["c"], Node("d"), Node("e")})
    for name in "de":
        stock.internal("__raftMatchIndex")[Node(name)] = 0
        stock.internal("__lastResponseTime")[Node(name)] = stock.now
    stock.internal("__raftMatchIndex")[Node("b")] = 2
    stock.tick()
    assert stock.object.raftCommitIndex == 1, "two of five are no majority"
    stock.set_internal("__readonlyNodes", {Node("d")})
    stock.internal("__raftMatchIndex")[Node("d")] = 2
    stock.set_internal("__otherNodes", {stock.nodes["b"], stock.nodes["c"], Node("e"), Node("f")})
    stock.internal("__raftMatchIndex")[Node("f")] = 0
    stock.internal("__lastResponseTime")[Node("f")] = stock.now
    stock.tick()
    assert stock.object.raftCommitIndex == 1, "a read-only node counts for nothing"
    stock.internal("__raftMatchIndex")[Node("e")] = 2
    stock.tick()
    assert stock.object.raftCommitIndex == 2


def test_who_is_not_heard_by_a_majority_lays_leadership_down() -> None:
    stock = Stock("b", "c")
    stock.lead()
    stock.hear("b", type="next_node_idx", next_node_idx=0, reset=False, success=False)
    matches = dict(stock.internal("__raftMatchIndex"))
    assert set(matches.values()) == {0}, "a sign of life acknowledges nothing"
    for node in _nodes(stock):
        stock.internal("__lastResponseTime")[node] = stock.now - 1000.0
    stock.tick()
    assert not stock.object._isLeader()


def test_leadership_can_be_laid_down() -> None:
    stock = Stock("b", "c")
    stock.lead()
    stock.set_internal("__raftLeader", None)
    stock.internal("__setState")(State.FOLLOWER)
    assert not stock.object._isLeader()
    assert stock.object._getLeader() is None
    assert stock.object.raftCurrentTerm == 1


def test_applying_is_a_step_of_its_own() -> None:
    stock = Stock("b", "c")
    stock.set_internal("__applyLogEntries", lambda: False)
    stock.lead()
    stock.internal("__raftMatchIndex")[Node("b")] = 2
    stock.tick()
    assert stock.object.raftCommitIndex == 2
    assert stock.object.raftLastApplied == 1


def _nodes(stock: Stock) -> list[Node]:
    return list(stock.nodes.values())
