"""Refusals of access control beside those of a real RocketMQ 5.3.3, recorded in `tests/golden/access_5.3.3.txt`.

To record anew, with a broker of RocketMQ 5.3.3 that has `authenticationEnabled` and `authorizationEnabled`, and an
administrator's account there (it makes accounts there and deletes a topic):

    RECORD_ACCESS=HOST:PORT,NAME,SECRET make test TESTS=tests/broker/features/accounts/test_refused_as_by_rocketmq.py
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Final

import pytest
from access_cases import Ask, cases, make_accounts, store, told
from guarded_broker import ROOT_CREDENTIALS
from test_no_way_around import ask as asked
from test_no_way_around import guarded

from dledger_remoting.command import RemotingCommand
from dledger_remoting.signatures import Credentials, signed
from tests.integration.bare_client import BareClient
from tests.recorded.golden_files import GOLDEN, compare

RECORDED_FROM: Final = os.environ.get("RECORD_ACCESS")
RECORDING: Final = GOLDEN / "access_5.3.3.txt"
NOT_THERE: Final = (*range(20_000, 20_100), 9000, 9001)
"""Request codes that RocketMQ has not: ours, and those of a feature of tests."""


ON_PURPOSE: Final[Mapping[str, tuple[str, ...]]] = {
    "who has no right reads nothing of others, and changes nothing": (
        "18 UPDATE_AND_CREATE_TOPIC_LIST",
        "21 GET_ALL_TOPIC_CONFIG",
        "25 UPDATE_BROKER_CONFIG",
        "26 GET_BROKER_CONFIG",
        "28 GET_BROKER_RUNTIME_INFO",
        "200 UPDATE_AND_CREATE_SUBSCRIPTION_GROUP",
        "201 GET_ALL_SUBSCRIPTION_GROUP_CONFIG",
        "225 UPDATE_AND_CREATE_SUBSCRIPTION_GROUP_LIST",
        "305 GET_SYSTEM_TOPIC_LIST_FROM_BROKER",
        "306 CLEAN_EXPIRED_CONSUMEQUEUE",
        "316 CLEAN_UNUSED_TOPIC",
        "324 SEND_REPLY_MESSAGE",
        "325 SEND_REPLY_MESSAGE_V2",
        "329 DELETE_EXPIRED_COMMITLOG",
        "361 LITE_PULL_MESSAGE",
        "400 QUERY_ASSIGNMENT",
        "401 SET_MESSAGE_REQUEST_MODE",
        "402 GET_ALL_MESSAGE_REQUEST_MODE",
        "200056 POP_ROLLBACK",
    ),
    "it makes administrators, or acts for others": (
        "222 INVOKE_BROKER_TO_RESET_OFFSET",
        "307 GET_CONSUMER_RUNNING_INFO",
        "309 CONSUME_MESSAGE_DIRECTLY",
        "314 CLONE_GROUP_OFFSET",
        "323 RESUME_CHECK_HALF_MESSAGE",
        "3001 AUTH_CREATE_USER",
        "3002 AUTH_UPDATE_USER",
        "3003 AUTH_DELETE_USER",
        "3006 AUTH_CREATE_ACL",
        "3007 AUTH_UPDATE_ACL",
        "3008 AUTH_DELETE_ACL",
    ),
    "they are served here": (
        "50 UPDATE_AND_CREATE_ACL_CONFIG",
        "51 DELETE_ACL_CONFIG",
        "52 GET_BROKER_CLUSTER_ACL_INFO",
        "53 UPDATE_GLOBAL_WHITE_ADDRS_CONFIG",
        "54 GET_BROKER_CLUSTER_ACL_CONFIG",
    ),
    "what a request names need not be what it is about": (
        "33 VIEW_MESSAGE_BY_ID",
        "33 VIEW_MESSAGE_BY_ID without its topic",
        "33 VIEW_MESSAGE_BY_ID of an empty topic",
        "36 CONSUMER_SEND_MSG_BACK",
        "37 END_TRANSACTION",
        "37 END_TRANSACTION without its topic",
    ),
    "what a group could not handle is the group's": (
        "11 PULL_MESSAGE from a retry topic, as another group",
        "310 SEND_MESSAGE_V2 to a retry topic, as another group",
        "310 SEND_MESSAGE_V2 to a dead letter topic",
    ),
    "who consumes needs it": (
        "29 SEARCH_OFFSET_BY_TIMESTAMP",
        "30 GET_MAX_OFFSET",
        "30 GET_MAX_OFFSET of a retry topic",
        "31 GET_MIN_OFFSET",
        "32 GET_EARLIEST_MSG_STORETIME",
        "200055 POLLING_INFO",
    ),
    "who may change one need not be able to make others; who may list may look": (
        "17 UPDATE_AND_CREATE_TOPIC",
        "3004 AUTH_GET_USER",
        "3005 AUTH_LIST_USER",
        "3009 AUTH_GET_ACL",
        "3010 AUTH_LIST_ACL",
    ),
    "brokers serve no routes; the answer is 3": ("105 GET_ROUTEINFO_BY_TOPIC",),
}
"""Requests that are refused to others here than by RocketMQ, or in other words, by the reason."""


def codes() -> list[int]:
    return [code for code in guarded().service.parts.routes() if code not in NOT_THERE]


def of_ours() -> Ask:
    broker = guarded()
    client = broker.client()

    def ask(who: Credentials | None, code: int, ext: Mapping[str, str], body: bytes = b"") -> RemotingCommand:
        return asked(client, code, dict(ext) if who is None else signed(ext, body, who), body, 0)

    return ask


def of_a_real_one(address: str) -> Ask:
    client = BareClient(address, answer_seconds=30.0)

    def ask(who: Credentials | None, code: int, ext: Mapping[str, str], body: bytes = b"") -> RemotingCommand:
        opaque = client.post(code, dict(ext) if who is None else signed(ext, body, who), body)
        while not ((answer := client.read()).is_response and answer.opaque == opaque):
            pass  # brokers ask clients, too
        return answer

    return ask


def all_told(ask: Ask, root: Credentials) -> dict[str, list[str]]:
    """Lines by request."""
    make_accounts(ask, root)
    found = store(ask, root)
    return {str(case): list(told(ask, case, found)) for case in cases(codes())}


@pytest.fixture(scope="module")
def recorded() -> dict[str, list[str]]:
    """What a real one says; it is asked anew to be recorded."""
    if RECORDED_FROM:
        address, name, secret = RECORDED_FROM.split(",")
        answers = all_told(of_a_real_one(address), Credentials(name, secret))
        RECORDING.write_text("".join(f"{case}\n" + "".join(f"{line}\n" for line in answers[case]) for case in answers))
    found: dict[str, list[str]] = {}
    for line in RECORDING.read_text().splitlines():
        if line.startswith(" "):
            found[next(reversed(found))].append(line)
        else:
            found[line] = []
    return found


@pytest.fixture(scope="module")
def ours() -> dict[str, list[str]]:
    return all_told(of_ours(), ROOT_CREDENTIALS)


def test_who_is_not_known_is_told_the_same_for_every_code(recorded, ours) -> None:
    assert recorded.keys() == ours.keys()
    for case, lines in ours.items():
        assert lines[:4] == recorded[case][:4], case


def test_what_is_refused_differs_only_where_it_is_listed(recorded, ours) -> None:
    different = {case for case in ours if ours[case] != recorded[case]}
    listed = {case for cases_of_one in ON_PURPOSE.values() for case in cases_of_one}
    assert different == listed, (sorted(different - listed), sorted(listed - different))
    lines = []
    for reason, some in ON_PURPOSE.items():
        lines.append(f"{reason}:")
        for case in some:
            lines += [f"  {case}", *(f"  {line}" for line in differing(recorded[case], ours[case]))]
    compare("access_differences", lines)


def differing(there: list[str], here: list[str]) -> Iterator[str]:
    for its, own in zip(there, here, strict=True):
        if its != own:
            yield f"{its}; here {own.partition(': ')[2]}"


def test_what_differs_is_documented() -> None:
    text = (GOLDEN.parents[1] / "docs" / "compatibility.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("| ")]
    told = {row[-2]: {int(code) for code in re.findall(r"\d+", row[1])} for row in rows}
    for reason, some in ON_PURPOSE.items():
        assert told.get(reason) == {int(case.split(" ")[0]) for case in some}, reason
