"""Bugs of the answers to clients."""

from __future__ import annotations

from collections.abc import Callable

from dledger.errors import LogError, LogFullError, NotLeaderError
from dledger.net.transport import PeerError
from dledger_broker.errors import wire_error
from dledger_broker.features.offsets.recent_commits import Committer, Key, RecentCommit, RecentCommits
from dledger_broker.features.offsets.requests import OffsetRequests
from dledger_broker.features.pulling.requests import PullRequests
from dledger_broker.features.ranges.requests import RangeRequests
from dledger_broker.features.sending.on_their_way import UnitInFlight, UnitsInFlight
from dledger_broker.features.sending.plain_sends import PlainSends
from dledger_broker.features.sending.unit import PendingSend, SendUnit
from dledger_broker.features.topics.requests import TopicRequests
from dledger_broker.frontend.dispatch import Dispatcher
from dledger_broker.frontend.forwarding import Envelope, Forwarder
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.requests import Request
from dledger_broker.views.reading import GetResult, ReadStatus
from dledger_remoting.codes import ResponseCode
from dledger_remoting.command import FLAG_ONEWAY
from dledger_remoting.filters.subscriptions import MessageFilter
from dledger_remoting.headers import DeleteTopicHeader, UpdateConsumerOffsetHeader, decode_ext
from dledger_remoting.hotpath import PullFields
from dledger_sim.brokers.schedules import commits, crossings
from dledger_sim.brokers.schedules import requests as request_schedules
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("broker")

# ---------------------------------------------------------------- sends


def _answer_when_staged(self: UnitsInFlight, unit: UnitInFlight) -> None:
    _real_add(self, unit)
    if isinstance(unit, SendUnit):
        unit.applied()


_real_add = UnitsInFlight.add

CATALOGUE.add(
    "send-answered-when-staged",
    "a send is acknowledged once a majority has its message on disk and readers can read it",
    (UnitsInFlight, "add", _answer_when_staged),
)


def _tear_batches(self: PlainSends, pending: list[PendingSend]) -> None:
    for send in pending:
        if send.request.flag & FLAG_ONEWAY and send.sizes is not None:
            send.size -= send.sizes.pop()
            send.messages = send.messages[:-1]
    _real_stage(self, pending)


_real_stage = PlainSends._stage  # noqa: SLF001 - patches private names

CATALOGUE.add("batch-torn", "a batch is stored whole or not at all", (PlainSends, "_stage", _tear_batches))


def _refuse_what_was_proposed(self: SendUnit, _full: LogFullError | None) -> None:
    if not self.settled:
        self.settled = True
        for pending in self._pending:
            self._failed(pending.request, NotLeaderError(None, 0))


CATALOGUE.add(
    "lost-send-refused",
    "a proposal that was lost sight of has an unknown outcome: it is neither refused nor sent again",
    (SendUnit, "dropped", _refuse_what_was_proposed),
)


def _send_again(self: Forwarder, request: Request, error: PeerError) -> None:
    _ = error
    self._hold(request)


CATALOGUE.add(
    "forward-sent-again",
    "a forwarded request without an answer is never sent again",
    (Forwarder, "_unanswered", _send_again),
)


def _forget_refusals(self: Forwarder, envelope: Envelope, reply: Callable[[bytes], None], answer: bytes) -> None:
    _ = self, envelope
    reply(answer)


CATALOGUE.add(
    "refusal-passed",
    "no forwarded request passes an earlier request of its channel that was refused",
    (Forwarder, "_reply", _forget_refusals),
    schedule=commits.commit_behind_a_refused_one,
    scenario="races",
)

CATALOGUE.add(
    "send-to-deleted-topic",
    "nothing is staged for a topic whose deletion is in flight",
    (PlainSends, "_drop_deleted_topics", lambda _self, pending: pending),
    schedule=request_schedules.send_in_the_turn_of_a_deletion,
)

# ---------------------------------------------------------------- reads


def _believe_oneself(self: Dispatcher, request: Request) -> None:
    if self._group.ready:
        request.confirmed = True
        self.run(request)
    else:
        self._forwarder.pass_on(request)


CATALOGUE.add(
    "read-unconfirmed",
    "answers with offsets and denials wait until a majority has confirmed the leader",
    (Dispatcher, "confirm", _believe_oneself),
    schedule=request_schedules.question_to_a_deposed_leader,
)


def _delete_what_is_known(self: TopicRequests, request: Request) -> None:
    if decode_ext(DeleteTopicHeader, request.ext).topic in self._machine.state.topics:
        _real_delete_topic(self, request)
    else:
        request.respond()


_real_delete_topic = TopicRequests.delete_topic

CATALOGUE.add(
    "deletion-unconfirmed",
    "only a confirmed leader answers that the target of a deletion is gone already",
    (TopicRequests, "delete_topic", _delete_what_is_known),
    schedule=crossings.deletion_by_a_deposed_leader,
)


def _deny_at_once(self: Dispatcher, request: Request, error: Exception) -> None:
    if isinstance(error, NotLeaderError):
        self._forwarder.pass_on(request)
        return
    request.fail(wire_error(error))


CATALOGUE.add(
    "follower-denies",
    "only a confirmed leader answers that something does not exist",
    (Dispatcher, "fail", _deny_at_once),
)


def _move_at_once(
    self: PullRequests,
    request: Request,
    fields: PullFields,
    queue: QueueState,
    message_filter: MessageFilter | None,
    result: GetResult,
) -> None:
    if result.status is ReadStatus.OFFSET_OVERFLOW_BADLY:
        self.answers.nothing(request, fields, ResponseCode.PULL_OFFSET_MOVED, result.next_begin, result)
    else:
        _real_conclude(self, request, fields, queue, message_filter, result)


_real_conclude = PullRequests._conclude  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "follower-moves-consumer",
    "a follower that lags moves no consumer back",
    (PullRequests, "_conclude", _move_at_once),
)

# ---------------------------------------------------------------- consumer offsets


CATALOGUE.add(
    "late-commit-taken",
    "a delayed forwarded commit does not move a committed offset back",
    (RecentCommits, "is_overtaken", lambda *_arguments: False),
    schedule=commits.commit_that_was_overtaken,
    scenario="races",
)

CATALOGUE.add(
    "late-commit-after-failover",
    "after a failover, a commit that waited for a leader does not move a committed offset back",
    (RecentCommits, "learn", lambda *_arguments: None),
    schedule=commits.commit_that_missed_two_leaders,
    scenario="races",
)

CATALOGUE.add(
    "late-commit-of-ones-own",
    "a commit that comes back to a node that leads by now does not move a committed offset back",
    (Request, "is_rerouted", property(lambda self: self.origin.is_forwarded)),
    schedule=commits.commit_that_came_back,
    scenario="races",
)


def _commit_again(self: OffsetRequests, request: Request, fields: PullFields) -> None:
    key, offset = (fields.consumer_group, fields.topic, fields.queue_id), fields.commit_offset
    if not request.is_rerouted or not self._group.ready:
        _real_commit_by_pull(self, request, fields)
    elif not self._is_overtaken(request, key, offset) and not self._may_be_overtaken(request, key, offset):
        origin = request.origin
        self._commit(key, offset, Committer.of(origin.key, origin.client_ids, origin.address.ip))


_real_commit_by_pull = OffsetRequests.commit_by_pull

CATALOGUE.add(
    "pull-commits-again",
    "a pull that is forwarded behind a later commit does not move a committed offset back",
    (OffsetRequests, "commit_by_pull", _commit_again),
    schedule=commits.pull_behind_a_later_commit,
    scenario="races",
)


def _answer_before_commit(self: OffsetRequests, request: Request, error: LogError | None) -> None:
    _ = self, request, error


def _update_and_answer(self: OffsetRequests, request: Request) -> None:
    _real_update(self, request)
    if not request.is_oneway:
        request.respond()


_real_update = OffsetRequests.update

CATALOGUE.add(
    "commit-answered-at-once",
    "a commit of an offset is acknowledged once it is applied",
    (OffsetRequests, "_finish_update", _answer_before_commit),
    (OffsetRequests, "update", _update_and_answer),
)


def _answer_overtaken_at_once(self: OffsetRequests, request: Request) -> None:
    header = decode_ext(UpdateConsumerOffsetHeader, request.ext)
    if self._is_overtaken(request, (header.consumer_group, header.topic, header.queue_id), header.commit_offset):
        request.respond()
    else:
        _real_update(self, request)


CATALOGUE.add(
    "overtaken-commit-answered-at-once",
    "an overtaken commit is acknowledged once the commit that overtook it is applied",
    (OffsetRequests, "update", _answer_overtaken_at_once),
    schedule=commits.overtaken_commit_and_a_killed_leader,
    scenario="races",
)


def _answer_whatever_became_of_it(
    self: OffsetRequests, request: Request, key: tuple[str, str, int], offset: int, error: LogError | None
) -> None:
    _ = key, offset
    _real_finish_update(self, request, error)


def _remember_before_it_is_applied(
    self: OffsetRequests, key: Key, offset: int, by: Committer, done: Done | None = None
) -> None:
    self._offsets.recent.note(key, RecentCommit(offset, by, self._env.now()))
    _real_commit(self, key, offset, by, done)


def _late_by_any(
    self: RecentCommits, by: Committer, key: Key, offset: int, under_way: tuple[RecentCommit, ...], now: float
) -> bool:
    taken = [
        taken for taken in (*self.of(key, now), *under_way) if taken.offset > offset and taken.committer is not None
    ]
    return any(
        one.committer.channel != by.channel
        for one in taken
        if one.committer is not None and one.committer.is_same_client(by)
    )


_real_commit = OffsetRequests._commit  # noqa: SLF001 - patches private names
_real_finish_update = OffsetRequests._finish_update  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "overtaken-by-a-lost-commit",
    "an overtaken commit is not acknowledged if the commit that overtook it was lost",
    (OffsetRequests, "_commit", _remember_before_it_is_applied),
    (RecentCommits, "is_overtaken", _late_by_any),
    (OffsetRequests, "_finish_overtaken", _answer_whatever_became_of_it),
    schedule=commits.commit_of_which_only_a_lower_one_is_left,
    scenario="races",
)


def _forget_a_case(self: RangeRequests, request: Request) -> None:
    _ = self
    raise KeyError(request.code)


CATALOGUE.add(
    "request-fails",
    "no request fails in an unforeseen way",
    (RangeRequests, "commit", _forget_a_case),
    scenario="repeats",
)
