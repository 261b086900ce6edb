"""Bodies and fields of all kinds for codes 400, 401, 222 and 314: each is answered once, a refusal with a reason."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st
from served_broker import BrokerInMemory, make_group, make_served_broker

from dledger_broker.config import BrokerConfig
from dledger_broker.features import FEATURES
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_remoting.codes import RequestCode

QUESTION: Final = {
    "topic": "T1",
    "consumerGroup": "CG",
    "clientId": "c1",
    "strategyName": "AVG",
    "messageModel": "CLUSTERING",
}
MODE: Final = {"topic": "T1", "consumerGroup": "CG", "mode": "POP", "popShareQueueNum": 0}
RESET: Final = {"topic": "T1", "group": "CG", "timestamp": "-1", "isForce": "true", "queueId": "0", "offset": "-1"}
CLONE: Final = {"srcGroup": "CG", "destGroup": "copy", "topic": "T1", "offline": "true"}
BODIES: Final = {RequestCode.QUERY_ASSIGNMENT: QUESTION, RequestCode.SET_MESSAGE_REQUEST_MODE: MODE}
FIELDS: Final = {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: RESET, RequestCode.CLONE_GROUP_OFFSET: CLONE}

NAMES: Final = st.sampled_from([*QUESTION, *MODE, *RESET, *CLONE, "é", ""])
TEXTS: Final = st.one_of(
    st.sampled_from(["", "T1", "CG", "%RETRY%CG", "SCHEDULE_TOPIC_XXXX", "true", "null", "NaN", "x" * 70_000]),
    st.integers(-(2**70), 2**70).map(str),
    st.text(max_size=20),
)
VALUES: Final = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)


@st.composite
def changed(draw: st.DrawFn, sound: dict[str, object], values: st.SearchStrategy[object]) -> dict[str, object]:
    """Draw fields of which some sound ones are left out, and some are replaced or added."""
    kept = {name: value for name, value in sound.items() if draw(st.integers(0, 9))}
    return kept | draw(st.dictionaries(NAMES, values, max_size=3))


@st.composite
def requests(draw: st.DrawFn) -> tuple[int, dict[str, str], bytes]:
    """Draw a code with its fields and its body."""
    code = draw(st.sampled_from([*BODIES, *FIELDS]))
    if code in FIELDS:
        return code, draw(changed(FIELDS[code], TEXTS)), draw(st.binary(max_size=5))
    text = json.dumps(draw(changed(BODIES[code], VALUES))).encode()
    cut = draw(st.sampled_from([len(text), draw(st.integers(0, len(text)))]))
    return code, {}, draw(st.one_of(st.just(text), st.just(text[:cut]), st.binary(max_size=30)))


@settings(max_examples=40, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=8))
def test_each_strange_body_is_answered_once_and_its_effect_survives_a_snapshot(
    asked: list[tuple[int, dict[str, str], bytes]],
) -> None:
    broker = make_served_broker(
        BrokerConfig(broker_group="broker-a", node_id="fake-n0", data_dir=Path("unused")), BrokerInMemory()
    )
    broker.memory.create_topic("T1")
    make_group(broker)
    client = broker.client()
    for code, fields, body in asked:
        answer = client.call_from_disk(code, fields, body)
        assert answer.code == 0 or answer.remark
        assert not re.search(r"Traceback|File \"|msgspec", answer.remark or ""), answer.remark
    assert len(client.answers) == len(asked)
    state = broker.memory.machine.state
    assert decode_state(encode_state(state, 0.0), 0.0, FEATURES).digest() == state.digest()
