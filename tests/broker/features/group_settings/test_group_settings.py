"""Records that a leader makes by itself: once, and in spite of refusals."""

from pathlib import Path

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


def leader_on_a_full_disk() -> BrokerInMemory:
    broker = BrokerInMemory(lead=False)
    GroupSettings(broker.machine, broker.env, CONFIG)
    broker.node.stage_error = LogFullError("no space is left")
    broker.node.lead()
    broker.env.run_ready()
    return broker


def test_what_a_full_disk_refused_is_recorded_once_there_is_room() -> None:
    broker = leader_on_a_full_disk()
    state = broker.machine.state
    assert state.members.ordinal is None
    assert not state.topics
    broker.env.advance(RETRY_S)
    assert not state.topics
    broker.node.stage_error = None
    broker.env.advance(RETRY_S)
    assert state.members.ordinal == CONFIG.group_ordinal
    assert state.table(REMEMBERED).window_ms == CONFIG.idempotent_window_ms
    assert set(state.topics) == TOPICS


def test_a_full_disk_does_not_keep_a_leader_from_saying_which_commands_it_understands() -> None:
    broker = leader_on_a_full_disk()
    assert NODE_ID in broker.machine.state.members.kinds


def test_it_is_recorded_once() -> None:
    broker = leader_on_a_full_disk()
    broker.node.stage_error = None
    broker.env.advance(RETRY_S)
    end = broker.log.end
    broker.env.advance(10 * RETRY_S)
    assert broker.log.end == end


def test_a_node_that_leads_no_more_leaves_it_to_the_next_leader() -> None:
    broker = leader_on_a_full_disk()
    broker.node.step_down()
    broker.node.stage_error = None
    broker.env.advance(10 * RETRY_S)
    assert not broker.machine.state.topics
    broker.node.lead()
    broker.env.run_ready()
    assert set(broker.machine.state.topics) == TOPICS


def test_it_is_recorded_once_a_member_that_does_not_understand_it_has_left() -> None:
    """A learner died before it told what it understands; its removal is told to nobody."""
    broker = BrokerInMemory(lead=False)
    voters = broker.node.membership.voters
    broker.node.membership = Membership(voters, (ReplicaId("dead", "00000001"),))
    GroupSettings(broker.machine, broker.env, CONFIG)
    broker.node.lead()
    broker.env.advance(RETRY_S)
    assert broker.machine.state.table(REMEMBERED).window_ms != CONFIG.idempotent_window_ms
    broker.node.membership = Membership(voters)
    broker.env.advance(RETRY_S)
    assert broker.machine.state.table(REMEMBERED).window_ms == CONFIG.idempotent_window_ms
