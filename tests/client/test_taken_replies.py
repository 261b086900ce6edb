"""Replies that a broker pushes: each is answered once, so that the answer is no answer to something else."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from dledger_client.connection import Connection
from dledger_client.core import ClientCore
from dledger_client.replies import Reply, RequestsThatWait
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, decode_command
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.headers import PushReplyHeader, encode_ext
from dledger_remoting.properties import CORRELATION_ID, parse_properties


class Wire:
    """A connection that keeps what is sent over it."""

    address = "10.0.0.1:10911"
    is_open = True

    def __init__(self) -> None:
        self.sent = bytearray()

    def send_frame(self, frame: bytes) -> None:
        self.sent += frame

    def codes(self) -> list[int]:
        decoder = FrameDecoder()
        decoder.receive_data(bytes(self.sent))
        return [decode_command(frame).code for frame in iter(decoder.next_frame, None)]


def pushed(properties: str, body: bytes = b"yes", sys_flag: int = 0) -> RemotingCommand:
    header = PushReplyHeader(
        producer_group="PG",
        topic="DefaultCluster_REPLY_TOPIC",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=sys_flag,
        born_timestamp=1,
        flag=0,
        properties=properties,
        reconsume_times=0,
        unit_mode=False,
        born_host="10.0.0.2:1",
        store_host="10.0.0.1:10911",
        store_timestamp=1,
    )
    return RemotingCommand(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, opaque=7, ext=encode_ext(header), body=body)


@pytest.mark.parametrize("name", ["waited for", "nobody's"])
async def test_a_reply_is_answered_once_whether_or_not_somebody_waits_for_it(name: str) -> None:
    requests, wire = RequestsThatWait(), Wire()
    core = ClientCore("127.0.0.1:1", on_request=requests.take)
    with requests.one_more("client", asyncio.get_running_loop().time() + 10) as (marks, reply):
        own = parse_properties(marks)[CORRELATION_ID]
        said = own if name == "waited for" else "another"
        core._on_request(cast(Connection, wire), pushed(f"{CORRELATION_ID}\x01{said}\x02"))
        assert wire.codes() == [ResponseCode.SUCCESS]
        assert reply.done() == (said == own)
        if reply.done():
            assert await reply == Reply(b"yes", {CORRELATION_ID: own})
    await core.close()


async def test_a_reply_that_cannot_be_read_is_answered_with_an_error_and_leaves_its_request_waiting() -> None:
    requests, wire = RequestsThatWait(), Wire()
    core = ClientCore("127.0.0.1:1", on_request=requests.take)
    with requests.one_more("client", asyncio.get_running_loop().time() + 10) as (marks, reply):
        core._on_request(cast(Connection, wire), pushed(marks, b"not compressed", sys_flag=1))
        assert wire.codes() == [ResponseCode.SYSTEM_ERROR]
        assert not reply.done()
    await core.close()
