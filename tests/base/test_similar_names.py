"""A wrong name is answered with the nearest few, never with hundreds."""

import pytest

from dledger_base.similar_names import did_you_mean, nearest, some_of

TOPICS = [f"orders-{number}" for number in range(500)]


def test_the_nearest_three_names_are_suggested_nearest_first():
    names = ["orders-eu", "orders", "order", "invoices", "border"]
    assert nearest("ordes", names) == ["orders", "order", "border"]
    assert did_you_mean("ordes", names) == ". Did you mean 'orders', 'order' or 'border'?"


@pytest.mark.parametrize(
    ("name", "said"), [("invoice", ". Did you mean 'invoices'?"), ("ORDERS", ". Did you mean 'orders'?"), ("xyz", "")]
)
def test_a_question_names_what_is_near_and_nothing_else(name, said):
    assert did_you_mean(name, ["orders", "invoices"]) == said


def test_of_very_many_names_three_at_most_are_told():
    assert nearest("orders-77x", [*TOPICS * 5, "zebra"])[0] == "orders-77"
    assert did_you_mean("order-7", TOPICS).count("'") == 6
    assert some_of(TOPICS) == "orders-0, orders-1, orders-2 and 497 more"
    assert some_of(["a", "b"]) == "a, b"
