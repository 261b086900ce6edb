"""Checks of filters, broadcasting and traces convict what is left out, not asked for, or told wrongly."""

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
    """All groups are given what they want, but for one message, and one gets another `too`."""
    history = sent("filtered")
    for number, value in enumerate(VALUES):
        for name, taker in TAKERS.items():
            if (taker.wants(value) and value != without) or too == (name, value):
                told(history, f"{name}-0", number, value)
    return history.end(VALUES, queue=QUEUE)


def test_filters_take_some_of_the_messages_and_differ():
    wanted = {name: {value for value in VALUES if taker.wants(value)} for name, taker in TAKERS.items()}
    assert {name: len(values) for name, values in wanted.items()} == {"sql": 8, "tags": 20, "class": 18}
    assert wanted["sql"] - wanted["tags"]


def test_what_filters_take_is_valid():
    assert verdict("filtered", taken().run()).result == "valid"


def test_nobody_filters():
    assert verdict("filtered", History("filtered").run()).result == "unknown"


@pytest.mark.parametrize("name", TAKERS)
def test_a_message_that_a_filter_takes_is_missed(name):
    wanted = next(value for value in VALUES if TAKERS[name].wants(value))
    assert verdict("filtered", taken(without=wanted).run()).result == "invalid"


@pytest.mark.parametrize("name", TAKERS)
def test_a_message_that_a_filter_leaves_out_is_not_to_be_given(name):
    unwanted = next(value for value in VALUES if not TAKERS[name].wants(value))
    assert verdict("filtered", taken(too=(name, unwanted)).run()).result == "invalid"


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


@pytest.mark.parametrize("story", TRACES)
def test_traces_are_held_to_what_producers_were_told(story):
    traces, expected = TRACES[story]
    found = verdict("traced", traced(traces).run())
    assert found.result == expected, found


def test_traces_that_could_not_be_read_are_unknown():
    history = traced([(ACKNOWLEDGED, Traced(True, 0))], read="fail")
    assert verdict("traced", history.run()).result == "unknown"


def traced(traces, read="ok"):
    history = History("filtered").send(ACKNOWLEDGED, 0, QUEUE, key=TOPIC).send(IN_DOUBT, key=TOPIC)
    for value, trace in traces:
        history.add("traced", value, msgspec.to_builtins(trace))
    return history.add("read-traces", TRACE_TOPIC, None, read)


def test_what_the_class_filter_takes_is_what_is_expected_of_it():
    for value in VALUES:
        weight = weight_of(value)
        properties = {} if weight is None else {"weight": str(weight)}
        message = FilteredMessage(TOPIC, b"", properties, tag_of(value), value, 0, 0, 0, 0, 0)
        assert is_light(message) == TAKERS["class"].wants(value)
