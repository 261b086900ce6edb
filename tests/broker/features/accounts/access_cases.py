"""Requests of all codes from accounts of all rights: which of them access control refuses, and in which words.

A real RocketMQ 5.3.3 was sent the same requests. `tests/golden/access_5.3.3.txt` has its refusals. For each kind of
resource, it has the single rights that suffice for an account with all rights on the other kinds.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from dledger_remoting.codes import ResponseCode, request_code_name
from dledger_remoting.command import RemotingCommand
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.recalls import RecallHandle
from dledger_remoting.signatures import Credentials
from tests.broker.features.locks.lock_bodies import lock_body

Ask: type = Callable[[Credentials | None, int, Mapping[str, str], bytes], RemotingCommand]
"""Function that returns the answer to a request, which an account or nobody signs."""

KINDS: Final = ("Topic", "Group", "Cluster")
ACTIONS: Final = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
GOES_ON: Final = "goes on"
NOTHING: Final = "nothing"
"""Takes the place of an action: no right on this kind of resource."""
POOR, RICH, OFF, DENIED = (Credentials(name, f"secret-of-{name}") for name in ("poor", "rich", "off", "denied"))
"""Accounts: without rights, with all rights, disabled, and with all rights but those on this one topic and group."""
NAMES: Final = {
    "topic": "T1", "consumerGroup": "CG", "group": "CG", "groupName": "CG", "producerGroup": "PG", "queueId": "0",
    "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "0", "commitOffset": "0", "suspendTimeoutMillis": "0",
    "subscription": "*", "subVersion": "0", "expressionType": "TAG", "timestamp": "0", "key": "K", "maxNum": "1",
    "beginTimestamp": "0", "endTimestamp": "9", "clientID": "c", "clientId": "c", "delayLevel": "0", "index": "0",
    "count": "1", "isForce": "true", "reset": "0", "invisibleTime": "60000", "pollTime": "0", "bornTime": "0",
    "initMode": "0", "extraInfo": "0 1700000000000 60000 0 0 broker-a 0 0", "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4", "bornTimestamp": "0", "flag": "0", "readQueueNums": "4", "writeQueueNums": "4",
    "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false", "cleanOffset": "false", "isOrder": "false",
    "statsName": "TOPIC_PUT_NUMS", "statsKey": "T1", "srcGroup": "CG", "destGroup": "other", "offline": "false",
    "username": "someone", "subject": "User:someone", "filter": "none", "subjectFilter": "none",
    "resourceFilter": "none", "policyType": "Custom",
    "resource": "Topic:none", "jstackEnable": "false", "consumerGroupSet": "CG", "messageQueueOffset": "0",
    "recallHandle": RecallHandle("T1", "broker-a", 1_700_000_100_000, "K5").encode(),
}  # fmt: skip
"""Fields for requests of any code. Each request uses its own fields of these."""
LETTERS: Final = {
    "a": "PG", "b": "T1", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "i": "",
}  # fmt: skip
_CONSUMER: Final = {
    "groupName": "CG", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [{"topic": "T1", "subString": "*"}],
}  # fmt: skip
_ACK: Final = {"c": "CG", "t": "T1", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1}
HEARTBEAT: Final = {"clientID": "c", "producerDataSet": [{"groupName": "PG"}]}
BODIES: Final[Mapping[int, bytes]] = {
    18: json.dumps({"topicConfigList": [{"topicName": "T1"}]}).encode(),
    34: json.dumps({**HEARTBEAT, "consumerDataSet": [_CONSUMER]}).encode(),
    41: lock_body("c", ("T1", 0)),
    42: lock_body("c", ("T1", 0)),
    46: json.dumps({"clientId": "c", "group": "CG", "subscriptionData": {"topic": "T1", "subString": "*"}}).encode(),
    200: json.dumps({"groupName": "CG"}).encode(),
    225: json.dumps({"groupConfigList": [{"groupName": "CG"}]}).encode(),
    400: json.dumps(
        {"topic": "T1", "consumerGroup": "CG", "clientId": "c", "strategyName": "AVG", "messageModel": "CLUSTERING"}
    ).encode(),
    401: json.dumps({"topic": "T1", "consumerGroup": "CG", "mode": "PULL", "popShareQueueNum": 0}).encode(),
    3001: json.dumps({"username": "someone", "password": "password", "userType": "Normal"}).encode(),
    200151: json.dumps({"brokerName": "broker-a", "acks": [_ACK]}).encode(),
}
DESTRUCTIVE: Final = (207, 215, 3003)
"""Codes that delete what other requests look at, and are therefore asked last."""
WITHOUT_ROUTE: Final = (105,)
"""Codes that brokers do not serve, but refuse all the same."""


class Case(NamedTuple):
    """Request of a case. `fields` are added to the common fields or replace them; None takes a field away."""

    code: int
    what: str = ""
    fields: Mapping[str, str | None] = {}
    body: bytes | None = None

    def __str__(self) -> str:
        return f"{self.code} {request_code_name(self.code)}{self.what and ' '}{self.what}"

    def request(self, found: Mapping[int, Mapping[str, str]]) -> tuple[dict[str, str], bytes]:
        """Return the request's fields and body. `found` has fields, by code, that name what a broker has stored."""
        named = {**NAMES, **found.get(self.code, {}), **self.fields}
        if self.code in (310, 320, 325):
            named = {**LETTERS, **self.fields}
        ext = {name: value for name, value in named.items() if value is not None}
        return ext, BODIES.get(self.code, b"") if self.body is None else self.body


def cases(codes: list[int]) -> list[Case]:
    """Return requests of all the codes, and special cases of some."""
    more = [
        Case(310, "to the retry topic of its group", {"b": "%RETRY%CG", "a": "CG"}),
        Case(310, "to a retry topic, as another group", {"b": "%RETRY%CG", "a": "PG"}),
        Case(310, "to a dead letter topic", {"b": "%DLQ%CG"}),
        Case(310, "to no topic", {"b": ""}),
        Case(11, "from the retry topic of its group", {"topic": "%RETRY%CG"}),
        Case(11, "from a retry topic, as another group", {"topic": "%RETRY%CG", "consumerGroup": "PG"}),
        Case(14, "in the retry topic of its group", {"topic": "%RETRY%CG"}),
        Case(30, "of a retry topic", {"topic": "%RETRY%CG"}),
        Case(33, "without its topic", {"topic": None}),
        Case(33, "of an empty topic", {"topic": ""}),
        Case(34, "of a producer", body=json.dumps(HEARTBEAT).encode()),
        Case(35, "of a producer", {"consumerGroup": None}),
        Case(37, "without its topic", {"topic": None}),
        Case(200050, "from a retry topic", {"topic": "%RETRY%CG"}),
    ]
    plain = [Case(code) for code in sorted({*codes, *WITHOUT_ROUTE}) if code not in DESTRUCTIVE]
    return [*plain, *more, *(Case(code) for code in DESTRUCTIVE if code in codes)]


def accounts() -> Iterator[tuple[Credentials, dict[str, list[str]]]]:
    """Yield accounts that have all rights on two kinds of resources, and one right or none on the third."""
    for kind in KINDS:
        for action in (NOTHING, *ACTIONS):
            rules = {f"{other}:*": ["All"] for other in KINDS if other != kind}
            if action != NOTHING:
                rules[f"{kind}:*"] = [action]
            yield having(kind, action), rules


def having(kind: str, action: str) -> Credentials:
    """Return the account that has this one right on a kind of resource."""
    name = f"{kind}-{action}".lower()
    return Credentials(name, f"secret-of-{name}")


def make_accounts(ask: Ask, root: Credentials) -> None:
    """Make all accounts of these cases."""

    def change(code: int, ext: dict[str, str], body: object) -> None:
        answer = ask(root, code, ext, json.dumps(body).encode())
        assert answer.code == 0, (code, ext, answer.remark)

    def make(who: Credentials, rules: Mapping[str, list[str]], denied: Mapping[str, list[str]] = {}) -> None:
        user = {"username": who.access_key, "password": who.secret, "userType": "Normal"}
        change(3001, {"username": who.access_key}, user)
        entries = [
            {"resource": resource, "actions": actions, "decision": decision}
            for decision, some in (("Allow", rules), ("Deny", denied))
            for resource, actions in some.items()
        ]
        subject = f"User:{who.access_key}"
        if entries:
            policies = [{"policyType": "Custom", "entries": entries}]
            change(3006, {"subject": subject}, {"subject": subject, "policies": policies})

    everything = {f"{kind}:*": ["All"] for kind in KINDS}
    make(POOR, {})
    make(RICH, everything)
    make(DENIED, everything, {"Topic:T1": ["All"], "Group:CG": ["All"]})
    make(OFF, everything)
    change(3002, {"username": OFF.access_key}, {"username": OFF.access_key, "userStatus": "disable"})
    for who, rules in accounts():
        make(who, rules)


def store(ask: Ask, root: Credentials) -> dict[int, dict[str, str]]:
    """Make the topic and the group of the cases, store a message and a half, and return what names them, by code."""

    def done(code: int, ext: Mapping[str, str], body: bytes = b"") -> RemotingCommand:
        answer = ask(root, code, ext, body)
        assert answer.code == 0, (code, ext, answer.remark)
        return answer

    done(17, NAMES)
    done(200, {}, BODIES[200])
    message = parse_offset_message_id(done(310, LETTERS, b"x").ext["msgId"])[1]
    half = done(310, {**LETTERS, "f": "4", "i": "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01K2\x02"}, b"x").ext
    end = {"commitLogOffset": str(parse_offset_message_id(half["msgId"])[1]), "commitOrRollback": "12"}
    return {
        33: {"offset": str(message)},
        36: {"offset": str(message)},
        37: {**end, "tranStateTableOffset": half["queueOffset"]},
        323: {"msgId": half["msgId"]},
    }


_REFUSAL: Final = re.compile(
    r"username cannot be null|User:[\w-]+ is (not found|disabled)|check signature failed"
    r"|has no permission to access"
)


def refusal(answer: RemotingCommand) -> str | None:
    """Return code and words of a refusal by access control, without names and what this broker adds, else None."""
    remark = answer.remark or ""
    if answer.code != ResponseCode.NO_PERMISSION or not _REFUSAL.search(remark):
        return None
    remark = re.sub(r"User:[\w-]+ ", "User:<account> ", remark.split("\n")[0])
    remark = re.sub(r" from [\d.]+(?=[,.])", " from <address>", remark)
    return f"{answer.code} {re.sub(r' [(][^()]*[)]$', '', remark)}"


def told(ask: Ask, case: Case, found: Mapping[int, Mapping[str, str]]) -> Iterator[str]:
    """Yield lines with a broker's answer to the request of each account. `goes on` means that it does not refuse."""
    ext, body = case.request(found)

    def says(who: Credentials | None) -> str:
        return refusal(ask(who, case.code, ext, body)) or GOES_ON

    yield f"  nobody: {says(None)}"
    yield f"  unknown: {says(Credentials('stranger', 'secret'))}"
    yield f"  disabled: {says(OFF)}"
    yield f"  another secret: {says(Credentials(RICH.access_key, 'secret'))}"
    yield f"  without rights: {says(POOR)}"
    yield f"  denied: {says(DENIED)}"
    if says(RICH) != GOES_ON:
        yield "  asks for: an administrator"
        return
    asked = []
    for kind in KINDS:
        if says(having(kind, NOTHING)) != GOES_ON:
            enough = [action for action in ACTIONS if says(having(kind, action)) == GOES_ON]
            asked.append(f"{' or '.join(enough) or 'all of several'} on {kind}")
    yield f"  asks for: {', '.join(asked) or 'any account'}"
