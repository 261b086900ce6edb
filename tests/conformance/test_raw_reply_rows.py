"""Bytes on the wire pass the rows about requests and replies."""

from __future__ import annotations

from raw_wire import ALL_WAYS, Wire, wires

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import FLAG_RESPONSE, RemotingCommand, encode_command
from dledger_remoting.properties import parse_properties
from tests.integration.bare_client import BareClient

REQUESTER = "raw@1"


row = wires(ALL_WAYS)


def reply(row: Wire, requester: str, correlation_id: str) -> dict[str, str]:
    """Return the ext fields of a reply (325) to the topic of the cluster that the request names."""
    cluster = parse_properties(row.pull(row.topic, 0).properties)["CLUSTER"]
    own = {"CORRELATION_ID": correlation_id, "REPLY_TO_CLIENT": requester, "MSG_TYPE": "reply"}
    return row.letters(own, topic=f"{cluster}_REPLY_TOPIC")


def test_a_reply_finds_its_requester_through_any_node(row):
    row.heartbeat()
    row.send("question", {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": REQUESTER, "TTL": "30000"})
    row.kill()
    asked = parse_properties(row.pull(row.topic, 0).properties)
    assert (asked["CORRELATION_ID"], asked["REPLY_TO_CLIENT"]) == ("c-1", REQUESTER)
    for number, node_id in enumerate(name for name in row.cluster.node_ids if name != row.killed):
        with BareClient(row.cluster.client_address(node_id)) as replier:
            opaque = replier.post(RequestCode.SEND_REPLY_MESSAGE_V2, reply(row, REQUESTER, "c-1"), b"%d" % number)
            pushed = row.pushes(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
            assert pushed.body == b"%d" % number
            assert parse_properties(pushed.ext["properties"])["CORRELATION_ID"] == "c-1"
            row.client.write(encode_command(RemotingCommand(0, opaque=pushed.opaque, flag=FLAG_RESPONSE)))
            answer = replier.read()
            assert (answer.opaque, answer.code) == (opaque, ResponseCode.SUCCESS), answer.remark


def test_a_reply_to_an_absent_requester_is_refused(row):
    row.heartbeat()
    row.send("question")
    row.kill()
    late = reply(row, "raw@none", "c-1"), b"too late"
    row.ask(RequestCode.SEND_REPLY_MESSAGE_V2, *late, expected=ResponseCode.SYSTEM_ERROR, text="raw@none")
