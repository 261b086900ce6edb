"""Members of groups that are reset while they run (222), administrators that reset them, and their judge.

Each queue of a group has one member at a time. A member that gives a queue up commits its offset a while later, as a
slow consumer does. By then the group may have been reset, and the next member may have seen the reset.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from dledger_remoting.codes import LanguageCode, RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, SubscriptionData, encode_heartbeat
from dledger_remoting.resets import AT_END
from dledger_sim.brokers.clients import Client, pull_fields
from dledger_sim.brokers.connection import Answer, SimConnection
from dledger_sim.brokers.expected import OffsetKey
from dledger_sim.brokers.reset_truth import GROUPS
from dledger_sim.brokers.workload import Workload
from dledger_sim.log.invariants import require

LEAVES_WITHIN_S: Final = 2.0
"""Maximum delay of a member's commit in a queue that it has given up, in seconds."""
BEAT_SHARE: Final = 0.05
LATE_BEAT_SHARE: Final = 0.3
"""Share of connections that send their heartbeat some time after their first commit."""
GIVE_UP_SHARE: Final = 0.1
COMMIT_SHARE: Final = 0.35
HERE_SHARE: Final = 0.3
"""Share of resets to the present offset of the queue's member.

A pull there does not show whether the member learned of the reset.
"""


class _Position(NamedTuple):
    """Offset of a member in a queue, and the last reset on which it rests."""

    offset: int
    rests_on: int


class ResetMember(Client):
    """Consumer of the queues of a group that no other member has.

    It learns of resets only from pulls and committed offsets (14).
    """

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self._group_name = GROUPS[number % len(GROUPS)]
        self._topic = min(workload.lasting)
        self._positions: dict[OffsetKey, _Position] = {}
        self._question_counts: dict[OffsetKey, int] = {}
        """Number of the member's requests for the offset of each queue."""
        workload.truth.seeking.add(self._group_name)

    def connected(self, connection: SimConnection) -> None:
        """Register as a member, at once or a while later. Commits before that are from an unknown client."""
        if self.random.random() >= LATE_BEAT_SHARE:
            self._send_heartbeat(connection)

    def _send_heartbeat(self, connection: SimConnection) -> None:
        subscription = SubscriptionData(self._topic, "*")
        heartbeat = HeartbeatData(self.name, [], [ConsumerData(self._group_name, subscription_data_set=[subscription])])
        command = RemotingCommand(
            RequestCode.HEART_BEAT, language=LanguageCode.DOTNET, body=encode_heartbeat(heartbeat)
        )
        connection.call(command, self.workload.settings.timeout_s, _ignore_answer)

    def act(self) -> None:
        """Become the member of a queue, give the queue up, or ask for its offset, pull or commit in it."""
        key = (self._group_name, self._topic, self.random.randrange(self.workload.settings.queues))
        holder = self.workload.queue_holders.setdefault(key, self.number)
        choice = self.random.random()
        if choice < BEAT_SHARE and (connection := self._connect()) is not None:
            self._send_heartbeat(connection)
            self.pause()
        elif holder != self.number:
            self.pause()
        elif key not in self._positions:
            self._ask_offset(key)
        elif choice < BEAT_SHARE + GIVE_UP_SHARE:
            self._leave_queue(key)
            self.pause()
        elif choice < BEAT_SHARE + GIVE_UP_SHARE + COMMIT_SHARE:
            self._commit(key)
        else:
            self._pull(key, self._positions[key])

    def _make_fields(self, key: OffsetKey) -> dict[str, str]:
        return {"consumerGroup": key[0], "topic": key[1], "queueId": str(key[2])}

    def _learn_position(self, key: OffsetKey, offset: int) -> None:
        self._positions[key] = _Position(offset, self.workload.truth.resets.newest(key))

    def _ask_offset(self, key: OffsetKey) -> None:
        self._question_counts[key] = self._question_counts.get(key, 0) + 1

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                offset = int(answer.ext["offset"])
                self._require_known_offset(key, offset, answer, committed=True)
                self._learn_position(key, offset)
            elif answer is not None and answer.code == ResponseCode.QUERY_NOT_FOUND:
                self._require_known_offset(key, None, answer, committed=True)
                self._learn_position(key, 0)
            self.pause()

        ext = self._make_fields(key) | {"setZeroIfNotFound": "false"}
        if not self.call(RequestCode.QUERY_CONSUMER_OFFSET, ext, done):
            self.pause()

    def _require_known_offset(self, key: OffsetKey, found: int | None, answer: Answer, *, committed: bool) -> None:
        if answer.seen is None:
            return
        truth, between = self.workload.truth, (answer.seen.asked_at, self.workload.group.scheduler.now)
        told = truth.resets.told[key].during(*between)
        # While a reset is pending no other offset is reported, though the committed offset may lie below the kept
        # messages.
        resets = {*told} - {None}
        known = {*resets, *(truth.expected.offsets[key].during(*between) if committed and None in told else ())}
        require(found in known, "a group goes on at the offset of its reset", key=key, found=found, known=known)
        self.workload.counts["told of a reset"] += found in resets

    def _pull(self, key: OffsetKey, place: _Position) -> None:
        truth, random = self.workload.truth.resets, self.random
        newest = truth.newest(key)
        waits = random.random() < self.workload.settings.long_poll_share
        commits = random.random() < 0.3
        if commits:
            truth.attempt(key, place.offset, place.rests_on)

        def done(answer: Answer | None) -> None:
            if answer is None:
                self._positions.pop(key, None)  # the lost answer may have had a new offset
            elif answer.code == ResponseCode.PULL_OFFSET_MOVED and answer.remark == "OFFSET_RESET":
                offset = int(answer.ext["nextBeginOffset"])
                self._require_known_offset(key, offset, answer, committed=False)
                self._learn_position(key, offset)
            else:
                self._handle_messages(key, place, newest, answer)
            self.pause()

        poll_s = random.uniform(0.2, 2.0) if waits else 0.0
        ext = self._make_fields(key) | pull_fields(place.offset, random.choice((1, 4)), poll_s=poll_s, commits=commits)
        timeout_s = self.workload.settings.timeout_s + poll_s
        if not self.call(RequestCode.PULL_MESSAGE, ext, done, timeout_s=timeout_s):
            self.pause()

    def _handle_messages(self, key: OffsetKey, place: _Position, newest: int, answer: Answer) -> None:
        seen = answer.seen
        if answer.code == ResponseCode.SUCCESS and seen is not None and not seen.passed_on:
            require(
                place.rests_on >= newest or seen.first_index < newest,
                "no member that was not told of a reset reads on",
                key=key,
                place=place,
                reset=newest,
            )
        after = self.workload.pulled(key[1], key[2], place.offset, answer)
        if after is not None:
            self._positions[key] = place._replace(offset=after)

    def _commit(self, key: OffsetKey) -> None:
        place = self._positions[key]
        self.workload.truth.resets.attempt(key, place.offset, place.rests_on)

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SYSTEM_BUSY:
                self.workload.counts["commit refused for a reset"] += "reset" in answer.remark
                self._positions.pop(key, None)
            self.pause()

        ext = self._make_fields(key) | {"commitOffset": str(place.offset)}
        if not self.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext, done):
            self.pause()

    # ---------------------------------------------------------------- leaving

    def _leave_queue(self, key: OffsetKey) -> None:
        place = self._positions.pop(key)
        del self.workload.queue_holders[key]
        leave = partial(self._commit_late, key, place, self._question_counts[key])
        self.workload.group.scheduler.after(self.random.uniform(0.0, LEAVES_WITHIN_S), leave)

    def _commit_late(self, key: OffsetKey, place: _Position, asked: int) -> None:
        """Commit the old offset, unless the member has asked for the queue's offset since.

        It would have to obey the answer.
        """
        if not self.workload.active or self._question_counts[key] != asked:
            return
        self.workload.truth.resets.attempt(key, place.offset, place.rests_on)

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SYSTEM_BUSY:
                self.workload.counts["late commit refused"] += "reset" in answer.remark

        ext = self._make_fields(key) | {"commitOffset": str(place.offset)}
        self.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext, done)


class Resetter(Client):
    """Administrator who resets groups: back, ahead, to their present offset, to a time, and to the end."""

    def act(self) -> None:
        """Reset a queue, or all queues."""
        workload, random = self.workload, self.random
        truth, topic = workload.truth, min(workload.lasting)
        key = (random.choice(GROUPS), topic, random.randrange(workload.settings.queues))
        queue = truth.topics[topic].kept(key[2])
        fields = {"group": key[0], "topic": topic, "isForce": "true", "timestamp": str(AT_END)}
        offset = None
        if queue and random.random() < 0.7:
            here = truth.committed.get(key, 0)
            offset = here if random.random() < HERE_SHARE else random.choice(queue).offset
            fields |= {"queueId": str(key[2]), "offset": str(offset)}
        elif queue and random.random() < 0.5:
            fields["timestamp"] = str(random.choice(queue).at_ms)
        before = truth.resets.newest(key)

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                done = [(number, to) for number, to in truth.resets.done[key] if number > before]
                good = done if offset is None else [to for _, to in done if to == offset]
                require(bool(good), "a reset is answered once it is applied", key=key, offset=offset, done=done)
                workload.counts["group reset"] += 1
            self.pause(haste=5.0)

        if not self.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields, done):
            self.pause()


def _ignore_answer(_answer: Answer | None) -> None:
    """Ignore an answer."""
