"""The linearizability checker agrees with brute force on small histories, and judges the classic examples right."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_chaos.linear import LOG, REGISTER, UNKNOWN, Call, check_linearizable, shortest


def calls(*lines):
    """Return calls from (f, argument, answer, called, returned). Without `returned` the end was not seen."""
    return [
        Call(number, f, argument, answer, called, *(returned or [None]))
        for number, (f, argument, answer, called, *returned) in enumerate(lines)
    ]


def result(history, model=REGISTER):
    return check_linearizable(history, model).result


LINEARIZABLE = {
    "nothing": (),
    "one after the other": (("write", 1, None, 0, 1), ("read", None, 1, 2, 3)),
    "a read that overlaps a write sees the old value": (("write", 1, None, 0, 9), ("read", None, None, 2, 3)),
    "or the new one": (("write", 1, None, 0, 9), ("read", None, 1, 2, 3)),
    "two writes at once, in the other order": (
        ("write", 1, None, 0, 9), ("write", 2, None, 1, 8), ("read", None, 1, 10, 11),
    ),
    "a write of unknown fate shows late": (
        ("write", 1, UNKNOWN, 0), ("read", None, None, 5, 6), ("read", None, 1, 7, 8),
    ),
    "or never": (("write", 1, UNKNOWN, 0), ("read", None, None, 5, 6)),
    "a cas of unknown fate": (
        ("write", 1, None, 0, 1), ("cas", (1, 2), UNKNOWN, 2), ("read", None, 1, 3, 4), ("read", None, 2, 5, 6),
    ),
    "a cas that fails": (("write", 1, None, 0, 1), ("cas", (2, 3), False, 2, 3), ("read", None, 1, 4, 5)),
    "touching at one moment is overlapping": (("write", 1, None, 0, 5), ("read", None, None, 5, 6)),
}  # fmt: skip

NOT_LINEARIZABLE = {
    "a lost write": (("write", 1, None, 0, 1), ("read", None, None, 2, 3)),
    "a stale read": (
        ("write", 1, None, 0, 1), ("write", 2, None, 2, 3), ("read", None, 1, 4, 5),
    ),
    "a value out of nowhere": (("read", None, 7, 0, 1),),
    "new, then old": (("write", 1, None, 0, 99), ("read", None, 1, 2, 3), ("read", None, None, 4, 5)),
    "an unknown write is seen and gone again": (
        ("write", 1, UNKNOWN, 0), ("read", None, 1, 2, 3), ("read", None, None, 4, 5),
    ),
    "a cas succeeds twice": (
        ("write", 1, None, 0, 1), ("cas", (1, 2), True, 2, 9), ("cas", (1, 3), True, 3, 8), ("read", None, 3, 10, 11),
    ),
    "a cas fails though its value was there": (("write", 1, None, 0, 1), ("cas", (1, 2), False, 2, 3)),
    "seen before it was written": (("read", None, 1, 0, 1), ("write", 1, None, 2, 3)),
}  # fmt: skip


@pytest.mark.parametrize("story", LINEARIZABLE)
def test_linearizable_register_histories_are_valid(story):
    history = calls(*LINEARIZABLE[story])
    found = check_linearizable(history, REGISTER)
    assert found.result == "valid"
    assert {call.id for call in history if call.returned is not None} <= {call.id for call in found.order}


@pytest.mark.parametrize("story", NOT_LINEARIZABLE)
def test_other_register_histories_are_invalid(story):
    found = check_linearizable(calls(*NOT_LINEARIZABLE[story]), REGISTER)
    assert found.result == "invalid"
    assert found.stuck


def test_linearizable_log_histories_are_valid():
    assert (
        result(calls(("append", "a", 0, 0, 9), ("append", "b", 1, 1, 5), ("read", None, ("a",), 2, 4)), LOG) == "valid"
    )
    assert (
        result(calls(("read", None, None, 0, 1), ("append", "a", UNKNOWN, 2), ("append", "b", 1, 3, 4)), LOG) == "valid"
    )


def test_other_log_histories_are_invalid():
    assert result(calls(("append", "a", 0, 0, 1), ("append", "b", 0, 2, 3)), LOG) == "invalid"
    assert result(calls(("append", "a", 0, 0, 1), ("read", None, ("b",), 2, 3)), LOG) == "invalid"
    assert result(calls(("append", "a", 0, 0, 1), ("read", None, (), 2, 3)), LOG) == "invalid"


def test_a_search_above_its_step_limit_is_unknown():
    history = [Call(number, "write", number, UNKNOWN, number, None) for number in range(12)]
    history.append(Call(99, "read", None, "never written", 50, 60))
    assert check_linearizable(history, REGISTER, step_limit=500).result == "unknown"


def test_a_long_history_takes_time_in_proportion():
    history = []
    for number in range(0, 3000, 3):
        history.append(Call(number, "write", number, None, number * 10, number * 10 + 25))
        history.append(Call(number + 1, "read", None, number, number * 10 + 5, number * 10 + 20))
        history.append(Call(number + 2, "read", None, number, number * 10 + 6, number * 10 + 21))
    found = check_linearizable(history, REGISTER)
    assert (found.result, found.steps < 10 * len(history)) == ("valid", True)


def test_the_shortest_history_still_convicts():
    history = calls(
        ("write", 1, None, 0, 1), ("read", None, 1, 2, 3), ("read", None, 1, 4, 5), ("write", 2, None, 6, 7),
        ("read", None, 2, 8, 9), ("read", None, 1, 10, 11), ("write", 3, None, 12, 13), ("write", 4, None, 10, 20),
    )  # fmt: skip
    left = shortest(history, REGISTER)
    assert [call.id for call in left] == [0, 3, 5, 7]
    assert left[-1].returned is None
    assert result(left) == "invalid"


def test_nothing_is_cut_from_a_history_that_is_no_conviction():
    history = calls(*LINEARIZABLE["one after the other"])
    assert shortest(history, REGISTER) == history


def brute_force(history, model):
    """Try every order of every choice of unknown operations."""
    done = [call for call in history if call.returned is not None]
    open_ended = [call for call in history if call.returned is None]
    for chosen in range(1 << len(open_ended)):
        some = done + [call for number, call in enumerate(open_ended) if chosen >> number & 1]
        if any(possible(order, model) for order in permutations(some)):
            return "valid"
    return "invalid"


def possible(order, model):
    """Return whether an order respects times and answers."""
    state = model.initial
    for place, call in enumerate(order):
        if any(later.returned is not None and later.returned < call.called for later in order[place + 1 :]):
            return False
        state = model.step(state, call)
        if state is None:
            return False
    return True


@st.composite
def histories(draw, operations):
    history = []
    for number in range(draw(st.integers(0, 5))):
        f, argument, answer = draw(operations)
        called = draw(st.integers(0, 8))
        returned = draw(st.none() | st.integers(called, 9))
        history.append(Call(number, f, argument, UNKNOWN if returned is None else answer, called, returned))
    return history


values = st.integers(1, 2)
register_operations = st.one_of(
    st.tuples(st.just("write"), values, st.none()),
    st.tuples(st.just("read"), st.none(), st.none() | values),
    st.tuples(st.just("cas"), st.tuples(values, values), st.booleans()),
)
log_operations = st.one_of(
    st.tuples(st.just("append"), values, st.integers(0, 2)),
    st.tuples(st.just("read"), st.none(), st.lists(values, max_size=2).map(tuple)),
)


@given(histories(register_operations))
def test_registers_are_judged_as_by_brute_force(history):
    assert result(history) == brute_force(history, REGISTER)


@given(histories(log_operations))
def test_logs_are_judged_as_by_brute_force(history):
    assert result(history, LOG) == brute_force(history, LOG)


@given(histories(register_operations))
def test_the_shortest_history_convicts_if_and_only_if_the_whole_does(history):
    assert result(shortest(history, REGISTER)) == result(history)
