"""Looks at the small files that hold promises: each on the lane on which it is written, the mark between two syncs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from dledger.environment import BACKGROUND, FLUSH, HARD_STATE
from dledger.replica.scrub import PromiseScrub
from tests.dledger.test_removal import Parts


def test_the_mark_is_looked_at_while_no_sync_is_under_way() -> None:
    """The end of a sync writes the mark on the event loop, which waits for whoever has the mark's lock at the disk."""
    parts = Parts()
    log, workers = parts.log, parts.workers

    def look() -> int:
        log.calls.append("mark looked at")
        return 1

    log.scrub_mark = look  # type: ignore[attr-defined]
    hard_state: Any = SimpleNamespace(scrub=lambda: 0)
    scrub = PromiseScrub(
        "n0", workers, cast(Any, log), hard_state, lambda: (), hard_state, parts.flusher, cast(Any, parts), rest_s=0.0
    )
    parts.flusher.written()
    scrub.tick()
    scrub.tick()
    assert [lane for lane, _, _ in workers.given] == [FLUSH, HARD_STATE], "a sync, and the first file of one round"
    _, work, done = workers.given.pop()
    done(work())
    assert len(workers.given) == 1, "the mark waits for the sync"
    assert [workers.finish(), workers.finish()] == [FLUSH, FLUSH]
    assert log.calls == ["sync", "mark written", "mark looked at"]
    assert scrub.rewritten == 1
    assert [workers.finish(), workers.finish()] == [BACKGROUND, BACKGROUND]
