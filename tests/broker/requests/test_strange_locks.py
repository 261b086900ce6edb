"""Bodies of all kinds for codes 41 and 42, while a queue is locked: the owner keeps it, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from dledger_broker.features.locks.table import LOCKS, LockKey, Owner
from dledger_remoting.codes import RequestCode, ResponseCode
from tests.broker.features.locks.lock_bodies import lock_body
from tests.broker.requests.node_waits import NodeWaits
from tests.broker.requests.test_refusals import answered, assert_explained, served

LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
OWNER: Final = "c"
"""Client that has locked T1/0 of CG, see `served`."""
SOUND: Final[dict[str, object]] = json.loads(lock_body(OWNER))
SOUND_FIELDS: Final = {"topic": st.just("T1"), "brokerName": st.just("broker-a")}
"""Sound fields of a queue."""
TEXTS: Final = st.one_of(
    st.sampled_from(["", " ", "T1", "CG", "absent", OWNER, "other", "broker-b", "%RETRY%CG", "a b", "x" * 300, "\x00"]),
    st.sampled_from(["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "\u0663", "\U0001f512", "\x01\x02", "../.."]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)
NUMBERS: Final = st.one_of(
    st.integers(-2, 6), st.sampled_from([2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**31), -(2**63), 10**400])
)
QUEUES: Final = st.one_of(st.sampled_from([0, 1, 3]), st.sampled_from([0, 1, 3]), NUMBERS)
OTHERS: Final = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=2)),
    max_leaves=4,
)


@st.composite
def changed(draw: st.DrawFn, sound: dict[str, object]) -> dict[str, object]:
    """Draw sound fields, of which some are left out, and some replaced by a value of their kind or of any kind."""
    kept: dict[str, object] = {}
    for name, value in sound.items():
        alike = st.booleans() if isinstance(value, bool) else NUMBERS if isinstance(value, int) else TEXTS
        match draw(st.integers(0, 19)):
            case 19:
                continue
            case 18:
                kept[name] = draw(OTHERS)
            case 17 | 16:
                kept[name] = draw(alike)
            case _:
                kept[name] = value
    return kept


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Draw the JSON of a body with some changes. Rarely, the text is cut off, or the queues are not queues."""
    body = draw(changed({**SOUND, "clientId": draw(st.sampled_from([OWNER, "other"]))}))
    if "mqSet" in body:
        sound = st.fixed_dictionaries({**SOUND_FIELDS, "queueId": QUEUES})
        queues = st.lists(sound.flatmap(changed), min_size=1, max_size=3)
        body["mqSet"] = draw(st.one_of(queues, queues, st.lists(st.one_of(sound, OTHERS), max_size=3), OTHERS))
    text = json.dumps(body).encode()
    return text if draw(st.integers(0, 9)) < 9 else text[: draw(st.integers(0, len(text)))]


def named(body: bytes) -> set[LockKey]:
    """Return the queues that an accepted body names."""
    read = json.loads(body)
    return {LockKey(read["consumerGroup"], queue["topic"], queue["queueId"]) for queue in read.get("mqSet", ())}


@settings(max_examples=150, deadline=None)
@given(code=st.sampled_from([LOCK, UNLOCK]), body=bodies())
def test_no_lock_request_takes_a_queue_from_its_owner(code: int, body: bytes) -> None:
    broker = served()
    client, machine = broker.client(), broker.memory.machine
    table, waits = machine.state.table(LOCKS), NodeWaits(broker, client)
    before, digest = dict(table), machine.digest()
    assert before == {LockKey("CG", "T1", 0): Owner("", OWNER)}
    answer = asyncio.run(answered(client, code, {}, body, 0))
    assert_explained(answer)
    after = dict(table)
    assert waits.counts() == {}
    if answer.code != ResponseCode.SUCCESS:
        assert machine.digest() == digest
        return
    owner, keys = Owner("", json.loads(body)["clientId"]), named(body)
    assert all(0 <= key.queue_id < 1 << 31 for key in keys)
    if code == LOCK:
        free = {key for key in keys if before.get(key, owner) == owner}
        assert after == before | dict.fromkeys(free, owner)
        granted = {(queue["topic"], queue["queueId"]) for queue in json.loads(answer.body)["lockOKMQSet"]}
        assert granted == {(key.topic, key.queue_id) for key in free}
    else:
        assert after == {key: has for key, has in before.items() if key not in keys or has != owner}


def test_generated_lock_bodies_cover_all_outcomes() -> None:
    """Strange bodies are accepted and refused in all ways. If nobody looked at them, they would prove nothing."""
    seen: set[tuple[int, str]] = set()

    @settings(max_examples=200, deadline=None, database=None, derandomize=True)
    @given(code=st.sampled_from([LOCK, UNLOCK]), body=bodies())
    def look(code: int, body: bytes) -> None:
        broker = served()
        answer = asyncio.run(answered(broker.client(), code, {}, body, 0))
        locks = len(broker.memory.machine.state.table(LOCKS))
        outcome = "fewer" if locks < 1 else "more" if locks > 1 else "as many"
        seen.add((code, outcome if answer.code == ResponseCode.SUCCESS else ResponseCode(answer.code).name))

    look()
    refusals = {"SYSTEM_ERROR", "INVALID_PARAMETER"}
    ways = {LOCK: {"more", "as many"} | refusals, UNLOCK: {"fewer", "as many"} | refusals}
    assert seen >= {(code, outcome) for code, outcomes in ways.items() for outcome in outcomes}
