"""Bugs of consumer offsets: how they are committed, kept through restarts, and queried."""

# ruff: noqa: SLF001 - patches private names

from __future__ import annotations

from collections.abc import Mapping

from dledger.errors import NotLeaderError
from dledger_broker.features.offsets.buffer import OffsetBuffer
from dledger_broker.features.offsets.commits import OffsetCommits
from dledger_broker.features.offsets.recent_commits import Key, RecentCommits
from dledger_broker.features.offsets.requests import OffsetRequests
from dledger_broker.features.offsets.table import OffsetTable
from dledger_broker.kernel.contexts import Done
from dledger_broker.service import BrokerService
from dledger_remoting.errors import QueryNotFound
from dledger_remoting.headers import QueryConsumerOffsetHeader
from dledger_sim.brokers.schedules import commits, questions
from dledger_sim.log.mutants.catalogue import Catalogue
from dledger_sim.log.node import SimulatedNode

CATALOGUE = Catalogue("broker")

# ---------------------------------------------------------------- snapshots and restarts


def _capture_what_changes(self: OffsetTable) -> list[tuple[tuple[str, str], Mapping[int, int]]]:
    return [(key, row.offsets) for key, row in self._rows.items()]


CATALOGUE.add(
    "capture-not-copied",
    "a captured table of offsets does not change",
    (OffsetTable, "capture", _capture_what_changes),
)


CATALOGUE.add(
    "committers-forgotten-at-a-restart",
    "a restart or a snapshot forgets no recent committer",
    (RecentCommits, "restore", lambda *_arguments: None),
)

# ---------------------------------------------------------------- lost leadership


CATALOGUE.add(
    "commits-kept-at-step-down",
    "commits that a deposed leader had accepted are not proposed when it leads again",
    (OffsetBuffer, "discard", lambda _self, _error: None),
    schedule=commits.commit_that_a_deposed_leader_had_taken,
)


def _discard_without_a_word(self: OffsetBuffer, _error: NotLeaderError) -> None:
    self._waiters.clear()
    self._offsets.clear()


CATALOGUE.add(
    "discarded-commits-never-answered",
    "a commit that a leader had accepted and lost is answered",
    (OffsetBuffer, "discard", _discard_without_a_word),
)

CATALOGUE.add(
    "collected-commits-dropped-at-a-handover",
    "a leader that hands over first proposes its collected commits",
    (SimulatedNode, "on_handover", lambda _self, _hook: None),
    schedule=commits.commit_that_a_handover_takes_along,
)


async def _leave_them(_self: OffsetCommits | BrokerService) -> None:
    """Stop without proposing the collected commits."""


CATALOGUE.add(
    "collected-commits-dropped-at-a-stop",
    "a leader that stops first proposes its collected commits",
    (OffsetCommits, "flush", _leave_them),
    schedule=commits.commit_in_a_leader_that_stops,
)

CATALOGUE.add(
    "passed-on-commits-dropped-at-a-stop",
    "a leader that stops accepts no commit from other nodes that it will not propose",
    (BrokerService, "part", _leave_them),
    schedule=commits.commit_passed_on_to_a_leader_that_closes_files,
)

# ---------------------------------------------------------------- commits that meet other commits


CATALOGUE.add(
    "commits-under-way-not-compared",
    "an overtaken commit does not replace the commit that overtook it and is still in flight",
    (OffsetBuffer, "under_way", lambda _self, _key: ()),
    scenario="races",
)


# ---------------------------------------------------------------- questions


def _ask_what_is_applied(self: OffsetBuffer, done: Done, key: Key | None = None) -> None:
    if key is None:
        _real_flush(self, done, key)
    else:
        done(None)


_real_flush = OffsetBuffer.flush

CATALOGUE.add(
    "question-passes-a-commit",
    "a client that commits, then asks over the same connection, is told its commit",
    (OffsetBuffer, "flush", _ask_what_is_applied),
)


def _wait_for_what_is_collected(self: OffsetBuffer, done: Done, key: Key | None = None) -> None:
    flights, self._flights = self._flights, []
    try:
        _real_flush(self, done, key)
    finally:
        self._flights = [*flights, *self._flights]


CATALOGUE.add(
    "question-passes-a-commit-under-way",
    "a client that commits, then asks, is told its commit, even if it is proposed and not yet applied",
    (OffsetBuffer, "flush", _wait_for_what_is_collected),
    schedule=questions.question_behind_a_commit_under_way,
)


def _begin_at_zero(self: OffsetRequests, header: QueryConsumerOffsetHeader) -> int:
    try:
        return _real_committed(self, header)
    except QueryNotFound:
        return 0


_real_committed = OffsetRequests._committed

CATALOGUE.add(
    "none-committed-means-zero",
    "without a committed offset, the answer has no offset",
    (OffsetRequests, "_committed", _begin_at_zero),
)


def _call_every_topic_young(self: OffsetRequests, header: QueryConsumerOffsetHeader) -> int:
    try:
        return _real_committed(self, header)
    except QueryNotFound:
        if header.set_zero_if_not_found is False:
            raise
        return 0


CATALOGUE.add(
    "every-topic-is-young",
    "a group without an offset begins at 0 only if the queue has lost no messages yet",
    (OffsetRequests, "_committed", _call_every_topic_young),
)
