"""Settings that a leader records by itself: each once, also if the log refuses at first."""

from pathlib import Path

import pytest

from dledger.errors import LogFullError
from dledger.types import Membership, ReplicaId
from dledger_broker.config import BrokerConfig
from dledger_broker.features.group_settings.settings import GroupSettings
from dledger_broker.features.sending.dedup.remembered import REMEMBERED
from dledger_broker.features.topics.system_topics import system_topics
from dledger_broker.kernel.trying_again import RETRY_S
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.node import NODE_ID

CONFIG = BrokerConfig(broker_group="g", node_id=NODE_ID, data_dir=Path("unused"), group_ordinal=7)
TOPICS = {topic.topic_name for topic in system_topics(CONFIG)}


@pytest.fixture
def broker() -> BrokerInMemory:
    """Return a leader on a full disk."""
    broker = BrokerInMemory(lead=False)
    broker.machine.events.add(GroupSettings(broker.machine, broker.env, CONFIG))
    broker.node.stage_error = LogFullError("no space is left")
    broker.node.lead()
    broker.env.run_ready()
    return broker


def test_group_settings_refused_by_a_full_disk_are_recorded_once_there_is_room(broker: BrokerInMemory) -> None:
    state = broker.machine.state
    assert NODE_ID in state.members.kinds, "the disk has room for that"
    assert state.members.ordinal is None
    assert not state.topics
    broker.env.advance(RETRY_S)
    assert not state.topics
    broker.node.stage_error = None
    broker.env.advance(RETRY_S)
    assert state.members.ordinal == CONFIG.group_ordinal
    assert state.table(REMEMBERED).window_ms == CONFIG.idempotent_window_ms
    assert set(state.topics) == TOPICS
    end = broker.log.end
    broker.env.advance(10 * RETRY_S)
    assert broker.log.end == end, "once"


def test_a_deposed_leader_leaves_group_settings_to_the_next_leader(broker: BrokerInMemory) -> None:
    broker.node.step_down()
    broker.node.stage_error = None
    broker.env.advance(10 * RETRY_S)
    assert not broker.machine.state.topics
    broker.node.lead()
    broker.env.run_ready()
    assert set(broker.machine.state.topics) == TOPICS


def test_a_group_setting_is_recorded_after_a_member_that_lacks_the_command_leaves() -> None:
    """A learner died before it told what it understands, and no event tells of its removal."""
    broker = BrokerInMemory(lead=False)
    voters = broker.node.membership.voters
    broker.node.membership = Membership(voters, (ReplicaId("dead", "00000001"),))
    broker.machine.events.add(GroupSettings(broker.machine, broker.env, CONFIG))
    broker.node.lead()
    broker.env.advance(RETRY_S)
    assert broker.machine.state.table(REMEMBERED).window_ms != CONFIG.idempotent_window_ms
    broker.node.membership = Membership(voters)
    broker.env.advance(RETRY_S)
    assert broker.machine.state.table(REMEMBERED).window_ms == CONFIG.idempotent_window_ms
