"""An application has one pin on each broker group: planners make it, reads renew it, and the end releases it."""

from __future__ import annotations

import pytest

from dledger_spark import pins
from dledger_spark.errors import RefusedError
from dledger_spark.filters import PushedFilters
from dledger_spark.offsets import Queue
from dledger_spark.options import read_options
from dledger_spark.partitions import LogSlice
from dledger_spark.pins import APPLICATION_VARIABLE, Application, new_application, present_application
from dledger_spark.planning import BatchPlanner
from dledger_spark.plans import Cut, GroupPlan, QueueBounds


class PinnedCluster:
    """Topic of one queue, and the pins on its group."""

    def __init__(self, pins: dict[str, int], limit: int = 1000) -> None:
        self._pins = pins
        self._limit = limit

    def queues(self) -> list[Queue]:
        return [Queue("t", "broker-a", 0)]

    def left(self, _: GroupPlan) -> set[Queue]:
        return set()

    def plan(self, group: str, *_: object, **__: object) -> GroupPlan:
        bounds = {Queue("t", group, 0): QueueBounds(0, 5)}
        return GroupPlan(group, 0, 0, 100, [Cut(0, 0, 0, None, None)], {"t": 0}, bounds)

    def pin(self, _group: str, name: str, position: int, _lease_ms: int) -> None:
        if len(self._pins) >= self._limit:
            raise RefusedError(29, f"the group has {self._limit} pins")
        self._pins[name] = position

    def unpin(self, _group: str, name: str) -> None:
        del self._pins[name]

    def close(self) -> None:
        """Do nothing."""


def planned(monkeypatch: pytest.MonkeyPatch, cluster: PinnedCluster, **options: str) -> list[str | None]:
    """Return the pins that the tasks of a read name."""
    monkeypatch.setattr("dledger_spark.planning.Cluster", lambda _: cluster)
    reading = read_options({"namesrv": "a:1", "subscribe": "t"} | options, "batch")
    parts = BatchPlanner(reading, PushedFilters()).partitions()
    return [part.pin for part in parts if isinstance(part, LogSlice)]


def test_the_frames_of_a_session_share_a_pin_that_its_end_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(APPLICATION_VARIABLE, raising=False)
    there: dict[str, int] = {}
    application = new_application()
    for _ in range(3):
        (name,) = planned(monkeypatch, PinnedCluster(there))
    assert list(there) == [name]
    planned(monkeypatch, PinnedCluster(there), pin="mine", pinLease="1h")
    monkeypatch.setattr(pins, "Cluster", lambda _: PinnedCluster(there))
    application.release()
    assert list(there) == ["mine"], "who named it gives it up"
    assert present_application().name != application.name, "the folder is gone"
    assert new_application().name == application.name, "its JVM may go on with another session"
    new_application().release()


def test_frames_of_later_leases_use_a_new_pin() -> None:
    application = Application("app", 100.0, None)
    assert [application.pin_name(600_000, now) for now in (100.0, 699.9, 700.1)] == ["app-0", "app-0", "app-1"]


def test_at_the_limit_a_read_goes_on_unpinned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert planned(monkeypatch, PinnedCluster({}, limit=0)) == [None]
    assert ["event=not_pinned" in record.message for record in caplog.records] == [True]
