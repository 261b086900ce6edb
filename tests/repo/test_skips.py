"""A skipped test is a failure in CI, unless its reason is on the list."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = (Path(__file__).resolve().parents[1] / "conftest.py").read_text()


@pytest.fixture
def tests(pytester, monkeypatch):
    pytester.makeconftest(CONFTEST)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")
    pytester.makepyfile(
        test_some="""
        import pytest

        def test_that_runs():
            pass

        def test_that_is_skipped():
            pytest.skip("no compiler")

        @pytest.mark.skipif(True, reason="the only wheel of rocketmq 0.4.4 is for Linux on x86-64")
        def test_that_may_be_skipped():
            pass

        @pytest.mark.xfail
        def test_that_is_known_to_fail():
            assert False
        """
    )
    monkeypatch.delenv("CI", raising=False)
    return pytester


def test_a_skip_is_a_failure_in_ci(tests, monkeypatch):
    monkeypatch.setenv("CI", "true")
    result = tests.runpytest("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(["*test_that_is_skipped was skipped, which CI does not allow: *no compiler"])


def test_a_skip_is_a_skip_elsewhere(tests):
    tests.runpytest("-p", "no:cacheprovider").assert_outcomes(passed=1, skipped=2, xfailed=1)
