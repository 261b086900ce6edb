"""SQL92 filters: RocketMQ's answers, agreement with SQL, places of faults, limits, and garbage."""

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_remoting.errors import SubscriptionParseFailed
from dledger_remoting.filters.closures import Names, condition
from dledger_remoting.filters.limits import MAX_DEPTH, MAX_EXPRESSION_CHARS, MAX_OPERANDS
from dledger_remoting.filters.parsing import parse_sql92
from dledger_remoting.filters.sql92 import SqlFilter
from dledger_remoting.filters.values import Incomparable
from dledger_remoting.properties import format_properties, parse_properties
from tests.remoting.sql92_answers import ANSWERS, FAILS, REFUSED


def answer(expression, properties):
    """Return a filter's answer for a message: True, False, None for null, or one of the words of `sql92_answers`."""
    names: Names = {}
    try:
        holds = condition(parse_sql92(expression), names)
    except SubscriptionParseFailed:
        return REFUSED
    try:
        return holds([properties.get(name) for name in names])
    except Incomparable:
        return FAILS


@pytest.mark.parametrize(("expression", "properties", "expected"), ANSWERS)
def test_an_expression_means_what_it_means_in_rocketmq(expression, properties, expected):
    assert answer(expression, properties) is expected
    if expected is not REFUSED:
        assert SqlFilter.parse(expression).matches(properties) is (expected is True)


def test_zero_is_a_double():
    """RocketMQ rejects it as a number that is too small."""
    for number in ("0.0", "00.00", "0.", "0e1"):
        assert answer(f"a > {number}", {"a": "0.5"}) is True
        assert answer(f"a < -{number}", {"a": "0.5"}) is False


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("", "line 1, column 1: expected a property or a literal, found the end"),
        ("a = 1 b = 2", "line 1, column 7: 'b' behind a whole expression"),
        ("a LIKE 'x%'", "line 1, column 3: 'LIKE' behind a whole expression"),
        ("a = 1)", "line 1, column 6: ')' behind a whole expression"),
        ("a IS NULL > 1", "line 1, column 11: '>' behind a whole expression"),
        ("a = 007", "line 1, column 6: '0' behind a whole expression"),
        ("a = 1;", "line 1, column 6: unexpected ';'"),
        ("a > 1 AND\n  b != 2", "line 2, column 5: unexpected '!'"),
        ("a > 1 AND\n  -- the other one\n  b = 'x", "line 3, column 7: a string that does not end"),
        ("a = 1 /* more", "line 1, column 7: a comment that does not end"),
        ("a IN ('x', 2)", "line 1, column 12: expected a string, found '2'"),
        ("a IN 'x'", "line 1, column 6: expected (, found string 'x'"),
        ("1 IN ('x')", "line 1, column 1: only the name of a property"),
        ("(a = 1", "line 1, column 7: expected ), found the end"),
        ("a NOT = 1", "line 1, column 7: expected BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH, found '='"),
        ("a IS 5", "line 1, column 6: expected NULL, found '5'"),
        ("a BETWEEN 5 AND 1", "line 1, column 17: BETWEEN 5 AND 1 matches nothing"),
        ("a BETWEEN 1 OR 5", "line 1, column 13: expected AND, found 'OR'"),
        ("a = 1 AND 5", "line 1, column 11: expected a condition"),
        ("a > 'x'", "line 1, column 5: a string has no order"),
        ("(a = 1) > 5", "line 1, column 1: a condition has no order"),
        ("a = NULL", "line 1, column 5: NULL equals nothing, use IS NULL"),
        ("TRUE = 1", "line 1, column 1: a boolean cannot be compared with a 32-bit integer"),
        ("a = 9223372036854775808", "line 1, column 5: '9223372036854775808' is larger than 9223372036854775807"),
        ("a = " + "9" * 30_000, "line 1, column 5: "),
        ("a = 1e400", "line 1, column 5: '1e400' is larger than any double"),
    ],
)
def test_a_fault_is_told_with_its_line_and_column(expression, fault):
    with pytest.raises(SubscriptionParseFailed) as caught:
        SqlFilter.parse(expression)
    assert fault in caught.value.remark
    assert len(caught.value.remark) < 200


# -------------------------------------------------------------------- limits


def refused(expression):
    return answer(expression, {}) is REFUSED


@pytest.mark.parametrize(
    ("opening", "innermost", "closing"),
    [("(", "a = 1", ")"), ("NOT ", "TRUE", ""), ("- ", "1", " = 1"), ("+", "1", " = 1")],
)
def test_expressions_nested_too_deeply_are_refused(opening, innermost, closing):
    def nested(levels):
        return opening * levels + innermost + (closing * levels if closing == ")" else closing)

    assert not refused(nested(MAX_DEPTH // 2))
    for levels in (MAX_DEPTH + 1, 10_000):
        assert refused(nested(levels))


@pytest.mark.parametrize(
    "expression", ["a = TRUE", "TRUE = a", "(b = 1) = a", "a = (b = 1)", "NOT (FALSE = a)", "TRUE <> c"]
)
def test_a_boolean_means_the_same_on_both_sides_of_a_comparison(expression):
    assert answer(expression, {"a": "true", "b": "1", "c": "x"}) is True
    assert answer(expression, {"a": "x", "b": "1", "c": "true"}) is False


def test_long_chains_of_comparisons_and_long_texts_are_refused():
    assert not refused(" = ".join("a" * (MAX_DEPTH // 2)))
    assert refused(" = ".join("a" * (MAX_DEPTH + 2)))
    assert refused("a " + "IS NULL " * (MAX_DEPTH + 2))
    assert not refused(f"a = '{'x' * (MAX_EXPRESSION_CHARS - 6)}'")
    assert refused(f"a = '{'x' * (MAX_EXPRESSION_CHARS - 5)}'")


def test_the_operands_of_a_level_are_limited():
    many = " OR ".join(f"a = {number}" for number in range(MAX_OPERANDS // 2))
    assert answer(many, {"a": str(MAX_OPERANDS // 2 - 1)}) is True
    assert refused(f"{many} OR b")
    strings = "'x', " * (MAX_OPERANDS - 1)
    assert not refused(f"a IN ({strings[:-2]})")
    assert refused(f"a IN ({strings}'x', 'y')")


def test_only_some_filters_of_long_expressions_are_kept():
    long = [f"a = '{number}{'x' * 2_000}'" for number in range(65)]
    first = SqlFilter.parse(long[0])
    assert SqlFilter.parse(long[0]) is first
    for expression in long[1:]:
        SqlFilter.parse(expression)
    assert SqlFilter.parse(long[0]) is not first


# -------------------------------------------------------------------- beside SQLite

NUMBERS = st.integers(-3, 3)
TEXTS = st.sampled_from(["", "x", "y", "xy", "it's", "5"])


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


def negated(name, not_, rest):
    return f"{name} {not_}{rest}"


NOT = st.sampled_from(["", "NOT "])
NUMERIC, TEXTUAL = st.sampled_from("mn"), st.sampled_from("st")
RANGES = st.builds(lambda low, more: f"BETWEEN {low} AND {low + more}", NUMBERS, st.integers(0, 3))
LISTS = st.lists(TEXTS, min_size=1, max_size=7).map(lambda texts: f"IN ({', '.join(map(quoted, texts))})")
ORDERS, EQUALITIES = st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), st.sampled_from(["=", "<>"])


PREDICATES = st.one_of(
    st.builds("{} {} {}".format, NUMERIC, ORDERS, NUMBERS),
    st.builds(negated, NUMERIC, NOT, RANGES),
    st.builds("{} {} {}".format, TEXTUAL, EQUALITIES, TEXTS.map(quoted)),
    st.builds(negated, TEXTUAL, NOT, LISTS),
    st.builds("{} IS {}NULL".format, st.sampled_from("mnst"), NOT),
    st.sampled_from(["TRUE", "FALSE", "NULL"]),
)
CONDITIONS = st.recursive(
    PREDICATES,
    lambda inner: st.one_of(
        st.builds("NOT ({})".format, inner),
        st.builds("{} {} {}".format, inner, st.sampled_from(["AND", "OR"]), inner),
        st.builds("({})".format, inner),
    ),
)
MESSAGES = st.fixed_dictionaries({}, optional={"m": NUMBERS, "n": NUMBERS, "s": TEXTS, "t": TEXTS})
SQLITE = sqlite3.connect(":memory:")


@given(CONDITIONS, MESSAGES)
def test_conditions_mean_what_they_mean_in_sql(expression, message):
    """Precedence and three-valued logic equal those of SQLite. Numbers are integers, and strings are not ordered."""
    columns = ", ".join(f"? AS {name}" for name in "mnst")
    (found,) = SQLITE.execute(
        f"SELECT ({expression}) FROM (SELECT {columns})", [message.get(name) for name in "mnst"]
    ).fetchone()
    properties = {name: str(value) for name, value in message.items()}
    assert answer(expression, properties) is (None if found is None else bool(found))


# -------------------------------------------------------------------- garbage

RESERVED_AND_NAMES = "NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH a b $x _1 é"
LITERALS_AND_SIGNS = "0 5 5L 1.5 .5e3 'x' '' ( ) , = <> < <= > >= + - -- /* */ ' ;"
WORDS = st.sampled_from([*RESERVED_AND_NAMES.split(), *LITERALS_AND_SIGNS.split(), "\n"])


@given(
    st.one_of(st.text(), st.lists(WORDS, max_size=30).map(" ".join)), st.dictionaries(st.sampled_from("ab"), st.text())
)
def test_any_text_is_a_filter_or_a_fault(expression, properties):
    assert answer(expression, properties) in {True, False, None, FAILS, REFUSED}


VALUES = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]))


@given(st.dictionaries(st.sampled_from(["a", "aa", "b", "é", "a a"]), VALUES), st.booleans())
def test_properties_are_found_in_the_text_of_a_record(properties, many):
    expression = "a = '' OR aa IS NULL OR b CONTAINS 'a' OR aa > 5"
    if many:
        expression += "".join(f" OR c{number} = ''" for number in range(10))
    parsed, text = SqlFilter.parse(expression), format_properties(properties).encode()
    assert parsed.matches_text(text) is parsed.matches(parse_properties(text)) is parsed.matches(properties)


def test_the_names_are_the_properties_that_a_message_is_asked_for():
    assert SqlFilter.parse("b > 1 AND (a IN ('x') OR b IS NULL) AND - c = 1").names == ("b", "a", "c")
