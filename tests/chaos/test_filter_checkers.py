"""Checks of filters, broadcasting and traces convict missing messages, unwanted messages, and wrong traces."""

from __future__ import annotations

import msgspec
import pytest
from histories import History, verdict

from dledger_broker.filter_process import FilteredMessage
from dledger_chaos.class_filter import is_light
from dledger_chaos.workloads.filtered import TAKERS, TOPIC, TRACE_TOPIC, tag_of, weight_of
from dledger_chaos.workloads.records import Seen, Traced

QUEUE = f"{TOPIC}/broker-a/0"
VALUES = [f"filtered.producer:{number}" for number in range(1, 31)]


def told(history: History, process: str, number: int, value: str) -> History:
    return history.add("deliver", QUEUE, Seen(number, value, number * 100), process=process)


def sent(workload: str) -> History:
    history = History(workload)
    for number, value in enumerate(VALUES):
        history.send(value, number, QUEUE, key=TOPIC)
    return history


def taken(*, without: str = "", too: tuple[str, str] = ("", "")) -> History:
    """Return a history in which each group gets its messages, except `without`, and one group gets `too`."""
    history = sent("filtered")
    for number, value in enumerate(VALUES):
        for name, taker in TAKERS.items():
            if (taker.wants(value) and value != without) or too == (name, value):
                told(history, f"{name}-0", number, value)
    return history.end(VALUES, queue=QUEUE)


def test_the_filters_take_different_parts_of_the_messages():
    wanted = {name: {value for value in VALUES if taker.wants(value)} for name, taker in TAKERS.items()}
    assert {name: len(values) for name, values in wanted.items()} == {"sql": 8, "tags": 20, "class": 18}
    assert wanted["sql"] - wanted["tags"]


@pytest.mark.parametrize(("history", "expected"), [(taken(), "valid"), (History("filtered"), "unknown")])
def test_correctly_filtered_deliveries_are_valid_and_none_are_unknown(history, expected):
    assert verdict("filtered", history.run()).result == expected


@pytest.mark.parametrize("name", TAKERS)
def test_a_message_that_a_filter_takes_is_missed_and_one_that_it_leaves_out_is_not_to_be_given(name):
    for wants in (True, False):
        value = next(value for value in VALUES if TAKERS[name].wants(value) == wants)
        history = taken(without=value) if wants else taken(too=(name, value))
        assert verdict("filtered", history.run()).result == "invalid"


def test_a_damaged_message_is_left_to_other_checks():
    history = told(taken(), "sql-0", len(VALUES), "damaged:40:0badf00d")
    assert verdict("filtered", history.run()).result == "valid"
    assert verdict("dirty-read", history.run()).result == "invalid"


def test_a_message_that_was_trimmed_is_not_missed():
    wanted = next(value for value in VALUES if TAKERS["tags"].wants(value))
    history = taken(without=wanted)
    history.add("bounds", QUEUE, [VALUES.index(wanted) + 1, len(VALUES)])
    assert verdict("filtered", history.run()).result == "valid"


@pytest.mark.parametrize(("missing", "expected"), [("", "valid"), ("member-0", "invalid"), ("member-1", "invalid")])
def test_each_member_that_broadcasts_is_to_be_given_everything(missing, expected):
    history = sent("broadcast")
    for number, value in enumerate(VALUES):
        for member in ("member-0", "member-1"):
            if number != 7 or member != missing:
                told(history, member, number, value)
    assert verdict("broadcast", history.end(VALUES, queue=QUEUE).run()).result == expected


ACKNOWLEDGED, IN_DOUBT, NOBODYS = "filtered.producer:1", "filtered.producer:2", "filtered.producer:9"
TRACES = {
    "what the producer was told": ([(ACKNOWLEDGED, Traced(True, 0)), (IN_DOUBT, Traced(False, -1))], "valid"),
    "only some": ([(IN_DOUBT, Traced(False, -1))], "valid"),
    "the same again": ([(ACKNOWLEDGED, Traced(True, 0))] * 2, "valid"),
    "another byte": ([(ACKNOWLEDGED, Traced(True, 100))], "invalid"),
    "a failure that was none": ([(ACKNOWLEDGED, Traced(False, -1))], "invalid"),
    "a success that nobody was told": ([(IN_DOUBT, Traced(True, 100))], "invalid"),
    "a message that nobody sent": ([(NOBODYS, Traced(True, 0))], "invalid"),
    "nothing": ([], "unknown"),
}


@pytest.mark.parametrize(("story", "read"), [*((story, "ok") for story in TRACES), ("the same again", "fail")])
def test_the_trace_checker_compares_traces_with_the_answers_of_producers(story, read):
    traces, expected = TRACES[story]
    history = History("filtered").send(ACKNOWLEDGED, 0, QUEUE, key=TOPIC).send(IN_DOUBT, key=TOPIC)
    for value, trace in traces:
        history.add("traced", value, msgspec.to_builtins(trace))
    found = verdict("traced", history.add("read-traces", TRACE_TOPIC, None, read).run())
    assert found.result == (expected if read == "ok" else "unknown"), found


def test_the_class_filter_takes_the_messages_that_the_checker_expects():
    for value in VALUES:
        weight = weight_of(value)
        properties = {} if weight is None else {"weight": str(weight)}
        message = FilteredMessage(TOPIC, b"", properties, tag_of(value), value, 0, 0, 0, 0, 0)
        assert is_light(message) == TAKERS["class"].wants(value)
