"""The runner of RocketMQ's suite cuts text out of sources, and judges the outcomes of tests."""

from __future__ import annotations

import tomllib

import pytest

from tests.conformance.rocketmq_suite.running import Row, Verdict, rows_of
from tests.conformance.rocketmq_suite.sources import HERE, SuiteError, without_method, without_statements

SOURCE = """\
public class OneIT {
    @Test
    public void first() throws Exception {
        if (true) {
            assertTrue(store instanceof Store);
        }
    }

    @Test(expected = X.class)
    public void second() {
        call(store);
    }
}
"""


def test_a_method_is_cut_out_with_its_annotation_and_no_other() -> None:
    cut = without_method(SOURCE, "first")
    assert "first" not in cut
    assert cut.count("@Test") == 1
    assert cut.count("{") == cut.count("}")
    with pytest.raises(SuiteError, match="there is no method third"):
        without_method(SOURCE, "third")


def test_statements_that_contain_a_text_are_cut_out() -> None:
    cut = without_statements(SOURCE, "instanceof Store")
    assert "assertTrue" not in cut
    assert "call(store);" in cut


def test_a_failure_is_red_unless_it_is_known_and_a_test_that_did_not_end_has_failed() -> None:
    said = "began\ta\nended\ta\tpassed\t0.1\t\nbegan\tb\nended\tb\tfailed\t0.2\tX: y\nbegan\tc\n"
    rows = [*rows_of("OneIT", said, "its process ended with 1"), *rows_of("TwoIT", "", "its process ended with 3")]
    verdict = Verdict.of(rows, {"OneIT#b": "differs", "OneIT#a": "mended since"})
    assert verdict.known == [Row("OneIT#b", "failed", 0.2, "differs")]
    assert [row.test for row in verdict.red] == ["OneIT#c", "TwoIT"]
    assert [row.test for row in verdict.mended] == ["OneIT#a"]
    assert "1 of 4 tests passed, 1 known differences, 2 red" in verdict.table()


def test_every_exception_has_a_reason() -> None:
    expected = tomllib.loads((HERE / "expected.toml").read_text(encoding="utf-8"))
    reasons = [*expected["left_out"].values(), *expected["known"].values()]
    assert all(len(reason) > 15 for reason in reasons)
