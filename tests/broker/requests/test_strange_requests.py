"""Requests with fields and bodies of all kinds, in both layouts, while leaders change and the log is trimmed.

Every request is answered once. Its effect is the same on a replica that applies the log, and in a state that was
restored from a snapshot.
"""

import asyncio
import json
import re
from random import Random

import pytest
from served_broker import BrokerInMemory, founded, pull_ext, send_ext

from dledger_broker.features import FEATURES
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand, encode_binary_header
from dledger_remoting.errors import FrameError
from dledger_remoting.frame import join_frame

REQUESTS = 600
NUMBER = re.compile(r"-?\d+", re.ASCII)
ONEWAY = 2
PROPERTIES = ("", "UNIQ_KEY\x01K\x02", "TAGS\x01t\x02KEYS\x01a b\x02")
NAMES = (
    *("consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "subscription"),
    *("suspendTimeoutMillis", "subVersion", "expressionType", "maxMsgBytes", "roles", "minCommit", "timestamp"),
    *("setZeroIfNotFound", "boundaryType", "clientID", "producerGroup", "readQueueNums", "writeQueueNums", "perm"),
    *("topicFilterType", "topicSysFlag", "order", "attributes", "group", "groupName", "cleanOffset", "key", "maxNum"),
    *("beginTimestamp", "endTimestamp", "offset", "sliceBytes", "times", "startPosition", "start", "end", "pin"),
    *("maxBytes", "name", "position", "leaseMillis", "renewal", "idempotent", "defaultTopic", "noForward"),
    *"abcdefghijklmn",
)
VALUES = (
    *("", "0", "1", "-1", "4", "7", "300", "1000", "2147483647", "-2147483648", "2147483648", "9223372036854775807"),
    *("-9223372036854775807", "9223372036854775808", "1e3", "1.5", " 5", "0x1", "NaN", "null", "true", "false"),
    *("x", "é"),
    *("T1", "T2", "CG", "TOOLS_CONSUMER", "CID_RMQ_SYS_X", "%RETRY%CG", "%DLQ%CG", "TBW102", "job", " ", "*", "a||b"),
    *("leader", "follower,leader", "+a=b", "SINGLE_TAG", "\x01", "\x02a\x01b", "x" * 70_000, *PROPERTIES),
)
ODD_VALUES = ({"a": 1}, [], None, True, 1.5, 10**30)
LOCKS = b'{"consumerGroup":"CG","clientId":"C1","mqSet":[{"topic":"T1","brokerName":"broker-a","queueId":0}]}'
BODIES = (
    *(b"", b"hello", b"{}", b"[]", b'{"topicConfigList":[{"topicName":"T3"}]}', b'{"groupName":"CG"}', b"\0" * 30),
    *(LOCKS, LOCKS.replace(b"C1", b"C2"), LOCKS.replace(b"0}", b"1}")),
    b'{"consumerGroup":"CG","clientId":"C1","mqSet":[]}',
    *(b'{"groupName":"CG2","retryQueueNums":2147483648}', b"\0\0\0\x18" + b"\0" * 13 + b"\1x\0\0\0", b"x" * 100_000),
)
QUEUE = {"topic": "T1", "queueId": "0", "timestamp": "0"}
OFFSET = {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": "1"}
TOPIC = {"topic": "T2", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
PIN = {"name": "job", "position": "0"}
FIELDS = {
    12: {"topic": "T1", "key": "K", "maxNum": "3", "beginTimestamp": "0", "endTimestamp": "9223372036854775807"},
    17: {**TOPIC, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"},
    33: {"offset": "0"},
    38: {"consumerGroup": "CG"},
    207: {"groupName": "CG"},
    352: {"group": "CG"},
    20010: {"roles": "leader"},
    20011: {"roles": "leader", "start": "0", "end": "100", "pin": "job"},
}
for codes, fields in (
    ((10, 18, 21, 35, 36, 200, 201, 310, 320, 999, 20012, 20015), {}),
    ((11, 361), pull_ext("T1")),
    ((14, 15), OFFSET),
    ((29, 30, 31, 32), QUEUE),
    ((215, 351), {"topic": "T2"}),
    ((20013, 20014), PIN),
    ((41, 42), {}),
    ((20016,), {"clientID": "C1", "consumerGroup": "CG"}),
):
    FIELDS |= dict.fromkeys(codes, fields)


def fields_for(random: Random, code: int) -> dict[str, str]:
    fields = dict(FIELDS[code])
    if code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
        queue_id, idempotent = random.choice((0, 1, 3, 9, -1)), random.choice(("true", "false"))
        is_batch = random.choice(("true", "false"))
        fields = send_ext("T1", queue_id, random.choice(PROPERTIES), idempotent=idempotent, m=is_batch)
    for _ in range(random.choice((0, 0, 1, 1, 2, 3))):
        own = fields and random.random() < 0.7
        fields[random.choice(list(fields) if own else NAMES)] = random.choice(VALUES)
    if fields and random.random() < 0.1:
        del fields[random.choice(list(fields))]
    return fields


def frame_of(random: Random, code: int, opaque: int, flag: int) -> bytes:
    fields, body = fields_for(random, code), random.choice(BODIES)
    if random.random() < 0.3:
        command = RemotingCommand(code, opaque=opaque, flag=flag, ext=fields)
        return join_frame(1, encode_binary_header(command), body)
    header: dict[str, object] = {"code": code, "flag": flag, "language": "JAVA", "opaque": opaque, "version": 1}
    ext: dict[str, object] = dict(fields)
    if random.random() < 0.2:
        ext |= {name: int(value) for name, value in fields.items() if NUMBER.fullmatch(value)}
    if random.random() < 0.1:
        ext["zz"] = random.choice(ODD_VALUES)
    if random.random() < 0.05:
        header["remark"] = random.choice((5, None, "x", {}))
    return join_frame(0, json.dumps({**header, "extFields": ext}, separators=(",", ":")).encode(), body)


def disturb(random: Random, broker) -> None:
    node = broker.memory.node
    if random.random() < 0.01:
        node.step_down()
        broker.advance(random.choice((0.0, 0.05, 3.0)))
        node.lead()
    if random.random() < 0.01:
        broker.advance(random.choice((0.3, 2.0, 20.0)))
    if random.random() < 0.005:
        node.snapshot()
    if random.random() < 0.01:
        node.cold = not node.cold
    if random.random() < 0.003 and (positions := node.trim_candidates()):
        node.trim(max(positions))


async def converse(random: Random, broker, client) -> set[int]:
    """Send random requests, and return the numbers of those that want an answer, after time for their answers."""
    wanting = set()
    for opaque in range(REQUESTS):
        flag = ONEWAY if random.random() < 0.1 else 0
        try:
            client.feed(frame_of(random, random.choice(list(FIELDS)), opaque, flag))
        except FrameError:
            continue
        if not flag:
            wanting.add(opaque)
        if random.random() < 0.3:
            broker.settle()
            await asyncio.sleep(0)
        disturb(random, broker)
    for _ in range(100):
        broker.settle()
        broker.advance(1.0)
        await asyncio.sleep(0)
    return wanting


@pytest.mark.parametrize("seed", range(20))
def test_every_request_is_answered_once_and_its_effect_is_the_same_everywhere(make_broker, seed):
    random = Random(seed)
    broker = make_broker(topics=("T1",), own=True, max_message_bytes=64 << 10)
    machine, node = broker.memory.machine, broker.memory.node
    client = founded(broker, idempotent_window_ms=10_000, max_idempotent_keys=100).client()
    wanting = asyncio.run(converse(random, broker, client))
    answered = [answer.opaque for answer in client.answers]
    assert sorted(answered) == sorted(wanting)
    assert (client.in_flight, client.held, client.forwards) == (0, 0, 0)
    assert decode_state(encode_state(machine.state, 0.0), 0.0, FEATURES).digest() == machine.digest()
    node.cold = False
    follower = BrokerInMemory(log=broker.memory.log, lead=False)
    follower.node.catch_up()
    assert follower.machine.digest() == machine.digest()
