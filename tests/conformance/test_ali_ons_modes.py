"""The unmodified npm client `ali-ons` 3.12.0 broadcasts, has namespaces, shares groups with ours, and can be reset."""

from __future__ import annotations

from functools import partial

import mode_rows
import pytest
import stories
from cluster_checks import create_topic
from rows import row_fixture

from dledger_client import SyncAdmin
from dledger_remoting.codes import RequestCode, ResponseCode
from tests.integration.bare_client import BareClient

pytestmark = pytest.mark.long
TAKEN_OVER_SECONDS = 120.0
GIVEN_UP_SECONDS = 40.0
"""Time limit in seconds, longer than a node waits for a consumer's answer, also on a busy machine."""
ROWS = {
    "every member of a broadcast group gets everything": mode_rows.every_member_of_a_broadcast_group_gets_everything,
    "names and retries in a namespace equal those of our client": partial(
        mode_rows.names_and_retries_are_within_a_namespace, shows_plain_names=False
    ),
}
row = row_fixture("ali_ons", groups="quick_groups")


@pytest.mark.parametrize("passes", ROWS.values(), ids=ROWS)
def test_the_client_passes_a_row(row, passes):
    passes(row)


@pytest.mark.parametrize("kills", [False, True], ids=["closed", "killed"])
def test_two_members_share_the_queues_and_one_takes_over_after_the_other(quick_group, ali_ons, kills):
    topic = f"AliTakenOver{kills}"
    create_topic(quick_group, topic)
    members = [ali_ons(quick_group.namesrv), ali_ons(quick_group.namesrv)]
    stories.two_members(members, f"{topic}-readers", topic, TAKEN_OVER_SECONDS, kills=kills)


@pytest.mark.parametrize("code", [RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY])
def test_operator_requests_to_an_ali_ons_consumer_time_out(quick_group, ali_ons, code):
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
