"""Settings that hold for every test, and the rule that nothing is skipped silently where CI runs."""

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

# Repeatable everywhere; HYPOTHESIS_PROFILE=search looks for new counterexamples.
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("search", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

ALLOWED_SKIPS = (
    "the only wheel of rocketmq 0.4.4 is for Linux on x86-64",
    "mounting a small file system takes root",
    "strace is not installed",
)
"""Reasons for which a test may be skipped although CI=true; any other skip fails there."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        _, _, reason = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, str(report.longrepr))
        if not reason.removeprefix("Skipped: ").startswith(ALLOWED_SKIPS):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} was skipped, which CI does not allow: {reason}"
    return report
