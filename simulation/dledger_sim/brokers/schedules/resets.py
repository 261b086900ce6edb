"""Schedules of groups that are reset: earlier commits that would enter the log after a consumer has seen the reset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dledger.errors import BusyError
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.resets import AT_END
from dledger_sim.brokers.clients import pull_fields
from dledger_sim.brokers.connection import SimConnection
from dledger_sim.brokers.schedules.brokers import GROUP_NAME, TOPIC, Brokers, offset_fields
from dledger_sim.brokers.service import BrokerSettings
from dledger_sim.log.registers import leading

KEY: Final = (GROUP_NAME, TOPIC, 0)


class Resetting:
    """Group that has read three messages. Its commits are collected for `collects_ms` before they are proposed."""

    def __init__(self, collects_ms: int) -> None:
        self.brokers = Brokers(BrokerSettings(offset_flush_ms=collects_ms))
        self.member = self.brokers.connect(self.brokers.leader)
        self.brokers.found_group(self.member)

    def reset(self, offset: int) -> None:
        """Reset the group to an offset."""
        fields = {"group": GROUP_NAME, "topic": TOPIC, "queueId": "0", "offset": str(offset)}
        fields |= {"isForce": "true", "timestamp": str(AT_END)}
        connection = self.brokers.connect(self.brokers.leader)
        answers = self.brokers.ask(connection, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        self.brokers.run(0.3)
        assert [answer.code for answer in answers if answer] == [ResponseCode.SUCCESS]

    def pull(self, offset: int, *, by: SimConnection | None = None) -> int:
        """Pull as a member, and return the next offset in the answer."""
        fields = {"consumerGroup": GROUP_NAME, "topic": TOPIC, "queueId": "0", **pull_fields(offset, 1)}
        answers = self.brokers.ask(by or self.member, RequestCode.PULL_MESSAGE, fields)
        self.brokers.run(0.3)
        (answer,) = answers
        assert answer is not None
        return int(answer.ext["nextBeginOffset"])

    def refuse_next(self) -> None:
        """Let the leader's log refuse one unit as busy, and take the next."""
        log = leading(self.brokers.group).replica.leading
        stage = log.stage

        def refuse(*_args: object, **_kwargs: object) -> int:
            log.stage = stage  # type: ignore[method-assign]
            raise BusyError("too much is in flight")

        log.stage = refuse  # type: ignore[method-assign]

    def is_pending(self) -> bool:
        """Return whether no consumer has seen the reset."""
        return KEY in self.brokers.workload.truth.resets.pending


def commit_that_was_collected_before_a_reset() -> None:
    """Check that a commit that the leader has taken and not proposed does not follow a reset that a consumer has seen.

    1. A member commits 3, which the leader proposes two seconds later, together with other commits.
    2. The group is reset to 0.
    3. The member pulls at 3, is told to continue at 0, and pulls there.
    4. The two seconds are over.

    Seeds collect for 0.2 s: a reset is rarely answered, and seen by a pull, within that.
    """
    resetting = Resetting(collects_ms=2000)
    brokers = resetting.brokers
    brokers.ask(resetting.member, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(3))
    brokers.run(0.1)
    resetting.reset(0)
    assert resetting.is_pending()
    assert resetting.pull(3) == 0
    assert resetting.pull(0) == 1
    assert not resetting.is_pending()
    brokers.run(3.0)
    assert brokers.workload.truth.committed[KEY] == 0


def commit_that_the_busy_log_does_not_take() -> None:
    """Check that a commit that is proposed just before a reset, and that the log refuses as busy, is dropped.

    1. A member commits 3, which the leader collects.
    2. The group is reset to 0. The commit is proposed first, which the busy log refuses, and then the reset, which it
      takes.
    3. The member is told, and continues at 0.
    4. A refused commit would normally be proposed again by now.

    In seeds the log rarely refuses exactly the unit before a reset, and takes the next.
    """
    resetting = Resetting(collects_ms=2000)
    brokers = resetting.brokers
    answers = brokers.ask(resetting.member, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(3))
    brokers.run(0.1)
    resetting.refuse_next()
    resetting.reset(0)
    assert [answer.code for answer in answers if answer] == [ResponseCode.SYSTEM_BUSY]
    assert resetting.pull(3) == 0
    assert resetting.pull(0) == 1
    assert not resetting.is_pending()
    brokers.run(3.0)
    assert brokers.workload.truth.committed[KEY] == 0


def commit_over_a_connection_without_a_heartbeat() -> None:
    """Check that a late commit of nobody known does not undo a reset that a member has seen.

    1. The group is reset to 0. The member pulls at 3, is told to continue at 0, and pulls there.
    2. Somebody commits 3 over a new connection, whose heartbeat has not arrived. It may be another member, which has
      read the messages before the reset.

    In seeds such a commit comes within the time in which a reset is remembered in few runs.
    """
    resetting = Resetting(collects_ms=100)
    brokers = resetting.brokers
    resetting.reset(0)
    assert resetting.pull(3) == 0
    assert resetting.pull(0) == 1
    assert not resetting.is_pending()
    stranger = brokers.connect(brokers.leader)
    answers = brokers.ask(stranger, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(3))
    brokers.run(1.0)
    assert [answer.code for answer in answers if answer] == [ResponseCode.SYSTEM_BUSY]
    assert brokers.workload.truth.committed[KEY] == 0


RESET_SCHEDULES: Final[tuple[Callable[[], None], ...]] = (
    commit_that_was_collected_before_a_reset,
    commit_that_the_busy_log_does_not_take,
    commit_over_a_connection_without_a_heartbeat,
)
