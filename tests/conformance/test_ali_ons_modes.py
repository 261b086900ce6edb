"""The unmodified npm client `ali-ons` 3.12.0 broadcasts, has namespaces, shares groups with ours, and can be reset.

`make test-clients` runs this: it takes minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import limit_rows
import mode_rows
import pytest
import reset_rows
import stories
from cluster_checks import create_topic
from rows import Row
from wiretap import Wiretap

from dledger_client import SyncAdmin
from dledger_remoting.codes import RequestCode, ResponseCode
from tests.integration.bare_client import BareClient

pytestmark = pytest.mark.slow
WITH_AND_WITHOUT_A_KILL = pytest.mark.parametrize(
    "row", [False, True], ids=["undisturbed", "leader killed"], indirect=True
)
TAKEN_OVER_SECONDS = 120.0
GIVEN_UP_SECONDS = 40.0
"""Longer than a node waits for a consumer's answer, on a busy machine, too."""
_NUMBERS = count()


@pytest.fixture
def row(quick_groups, ali_ons, request) -> Iterator[Row]:
    with Wiretap(quick_groups) as tap:
        yield Row(quick_groups, tap, ali_ons, f"AliMode{next(_NUMBERS)}", kills=request.param)


@WITH_AND_WITHOUT_A_KILL
def test_every_member_of_a_broadcast_group_gets_everything(row):
    mode_rows.every_member_of_a_broadcast_group_gets_everything(row)


@WITH_AND_WITHOUT_A_KILL
def test_names_and_retries_are_within_a_namespace_and_ours_are_the_same(row):
    mode_rows.names_and_retries_are_within_a_namespace(row, shows_plain_names=False)


@WITH_AND_WITHOUT_A_KILL
def test_members_of_both_kinds_share_the_queues_of_a_group(row):
    mode_rows.members_of_both_kinds_share_the_queues_of_a_group(row)


@WITH_AND_WITHOUT_A_KILL
def test_a_live_group_goes_on_where_it_is_told(row):
    reset_rows.a_live_group_goes_on_where_it_is_told(row, reset_rows.by_mqadmin)


@WITH_AND_WITHOUT_A_KILL
def test_a_group_that_is_away_comes_back_where_it_was_told(row):
    reset_rows.a_group_that_is_away_comes_back_where_it_was_told(row, reset_rows.by_mqadmin)


@pytest.mark.parametrize("kills", [False, True], ids=["undisturbed", "leader killed"])
def test_a_new_group_begins_at_the_end_of_a_queue_that_is_trimmed(trimmed_group, ali_ons, kills):
    client = ali_ons(trimmed_group.namesrv)
    limit_rows.a_new_group_begins_at_the_end_of_a_trimmed_queue(
        trimmed_group, client, f"AliTrimmed{kills}", kills=kills
    )


def test_a_body_of_4_mib_is_stored_and_one_that_is_longer_is_refused(quick_group, ali_ons):
    with Wiretap(quick_group) as tap:
        limit_rows.only_a_body_of_4_mib_is_stored(quick_group, tap, ali_ons(tap.namesrv), "AliLarge")


@pytest.mark.parametrize("kills", [False, True], ids=["closed", "killed"])
def test_two_members_share_the_queues_and_one_takes_over_what_the_other_leaves(quick_group, ali_ons, kills):
    topic = f"AliTakenOver{kills}"
    create_topic(quick_group, topic)
    members = [ali_ons(quick_group.namesrv), ali_ons(quick_group.namesrv)]
    stories.two_members(members, f"{topic}-readers", topic, TAKEN_OVER_SECONDS, kills=kills)


@pytest.mark.parametrize("code", [RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY])
def test_who_asks_it_what_it_is_doing_is_told_that_it_does_not_answer(quick_group, ali_ons, code):
    topic = f"AliAsked{code:d}"
    create_topic(quick_group, topic)
    client = ali_ons(quick_group.namesrv)
    client.call("push", name="asked", group=f"{topic}-readers", topic=topic)
    sent = client.call("send", topic=topic, body="message")
    client.wait_for(lambda: client.bodies("asked") == ["message"], "the message")
    with SyncAdmin(quick_group.namesrv) as admin:
        (member,) = admin.members(f"{topic}-readers")
    asked = {"consumerGroup": f"{topic}-readers", "clientId": member.client_id, "brokerName": "broker-a"}
    leader = quick_group.client_address(quick_group.leader())
    with BareClient(leader, answer_seconds=GIVEN_UP_SECONDS) as operator:
        answer = operator.ask(code, {**asked, "msgId": sent["message_id"]})
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
