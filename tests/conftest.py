"""Settings for every test, and the rule that CI fails for skipped tests without a known reason."""

import os
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import settings

from dledger_base import loop_guard

HELPERS = {
    path.stem for path in Path(__file__).parent.rglob("*.py") if not path.stem.startswith(("test_", "conftest", "__"))
}
"""Modules that tests import. Pytest rewrites their assertions too, so that a failure shows its values."""
pytest.register_assert_rewrite(*sorted(HELPERS))

SERVING = (
    "dledger.node",
    "dledger.reopening",
    "dledger.replica.",
    "dledger_broker.",
    "dledger_namesrv.",
    "dledger_base.",
)
"""Modules that run on the loop of a node or name server."""
NOT_SERVING = ("dledger_base.loop_guard", "dledger_broker.testing.", "dledger_sim.brokers.")


def is_a_tests_own(caller: FrameType) -> bool:
    """Return whether a test does disk work on its own loop, which no node waits for."""
    frame: FrameType | None = caller
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.startswith(SERVING) and not module.startswith(NOT_SERVING):
            return False
        frame = frame.f_back
    return True


loop_guard.watch(is_a_tests_own)

# Examples are repeatable by default. HYPOTHESIS_PROFILE=search looks for new counterexamples.
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("search", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

os.environ.setdefault("DLEDGER_CONSOLE_PORT", "0")
"""Clusters of tests have no console: they would all want one port."""
os.environ["DLEDGER_CONTEXTS"] = os.devnull
"""No test uses the clusters of whoever runs it."""

ALLOWED_SKIPS = (
    "chromium is not installed",  # .ci/run reports this too
    "promtool is not installed",  # .ci/run reports this too
    "the only wheel of rocketmq 0.4.4 is for Linux on x86-64",
    "mounting a small file system takes root",
    "strace is not installed",
    "this file system reads no page",
    "the native part is not built",  # .ci/run reports this too
    "no NATS v",  # `make bench-peers` fetches it
)
"""Reasons for which a test may be skipped although CI=true. Any other skip fails there."""


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


@pytest.fixture(autouse=True)
def loops_do_no_disk_work() -> Generator[None]:
    """Fail a test with disk work on an event loop, also if the code caught the error."""
    loop_guard.violations.clear()
    yield
    assert not loop_guard.violations, "disk work on an event loop"
