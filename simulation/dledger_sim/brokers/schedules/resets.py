"""Groups that are reset: commits that were taken before, and would come into the log when a consumer has seen that."""

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
    """A group that has read three messages, and whose commits are collected for so long before they are proposed."""

    def __init__(self, collects_ms: int) -> None:
        self.brokers = Brokers(BrokerSettings(offset_flush_ms=collects_ms))
        self.member = self.brokers.connect(self.brokers.leader)
        self.brokers.found_group(self.member)

    def reset(self, offset: int) -> None:
        """Have the group go on at an offset."""
        fields = {"group": GROUP_NAME, "topic": TOPIC, "queueId": "0", "offset": str(offset)}
        fields |= {"isForce": "true", "timestamp": str(AT_END)}
        connection = self.brokers.connect(self.brokers.leader)
        answers = self.brokers.ask(connection, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        self.brokers.run(0.3)
        assert [answer.code for answer in answers if answer] == [ResponseCode.SUCCESS]

    def pull(self, offset: int, *, by: SimConnection | None = None) -> int:
        """A member pulls; where it is told to go on."""
        fields = {"consumerGroup": GROUP_NAME, "topic": TOPIC, "queueId": "0", **pull_fields(offset, 1)}
        answers = self.brokers.ask(by or self.member, RequestCode.PULL_MESSAGE, fields)
        self.brokers.run(0.3)
        (answer,) = answers
        assert answer is not None
        return int(answer.ext["nextBeginOffset"])

    def refuse_next(self) -> None:
        """The leader's log refuses one unit as busy, and takes what comes next."""
        log = leading(self.brokers.group).replica.leading
        stage = log.stage

        def refuse(*_args: object, **_kwargs: object) -> int:
            log.stage = stage  # type: ignore[method-assign]
            raise BusyError("too much is in flight")

        log.stage = refuse  # type: ignore[method-assign]

    def is_pending(self) -> bool:
        """Whether nobody has seen the reset."""
        return KEY in self.brokers.workload.truth.resets.pending


def commit_that_was_collected_before_a_reset() -> None:
    """A commit that the leader has taken and not proposed does not come behind the reset that a consumer has seen.

    1. A member commits 3, which the leader proposes two seconds later, with what else comes meanwhile. 2. The group is
    reset to 0. 3. The member pulls at 3, is told to go on at 0, and pulls there. 4. The two seconds are over.

    Seeds collect for 0.2 s: a reset is seldom answered, and seen by a pull, within that.
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
    """The same of one that is proposed just before the reset, and that the log refuses as busy: it is dropped.

    1. A member commits 3, which the leader collects. 2. The group is reset to 0: the commit is proposed first, which
    the busy log refuses, and then the reset, which it takes. 3. The member is told, and goes on at 0. 4. What was
    refused as busy would be proposed again by now.

    Seeds seldom have the log refuse the one unit in front of a reset, and take the next.
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


RESET_SCHEDULES: Final[tuple[Callable[[], None], ...]] = (
    commit_that_was_collected_before_a_reset,
    commit_that_the_busy_log_does_not_take,
)
