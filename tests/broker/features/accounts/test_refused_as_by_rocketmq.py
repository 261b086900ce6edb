"""Refusals of access control, compared with those of a real RocketMQ 5.3.3 in `tests/golden/access_5.3.3.txt`.

Recording them again takes a broker of RocketMQ 5.3.3 that has `authenticationEnabled` and `authorizationEnabled`, and
an administrator's account there. The recording makes accounts there and deletes a topic:

    RECORD_ACCESS=HOST:PORT,NAME,SECRET make test TESTS=tests/broker/features/accounts/test_refused_as_by_rocketmq.py
"""

import os
from collections.abc import Iterator, Mapping
from typing import Final

import pytest
from access_cases import Ask, Case, cases, make_accounts, store, told
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
"""Request codes that RocketMQ does not have: ours, and those of a feature of tests."""


def plain(*codes: int) -> tuple[str, ...]:
    """Return the requests of codes, by the names that the recordings give them."""
    return tuple(str(Case(code)) for code in codes)


ON_PURPOSE: Final[Mapping[str, tuple[str, ...]]] = {
    "who has no right reads nothing of others, and changes nothing": plain(
        *(18, 21, 25, 26, 28, 200, 201, 225, 305, 306, 316, 324, 325, 329, 361, 400, 401, 402, 200056)
    ),
    "it makes administrators, or acts for others": plain(222, 307, 309, 314, 323, 3001, 3002, 3003, 3006, 3007, 3008),
    "they are served here": plain(50, 51, 52, 53, 54),
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
    ),
    "who consumes needs it": (*plain(29, 30), "30 GET_MAX_OFFSET of a retry topic", *plain(31, 32, 200055)),
    "who may change one need not be able to make others; who may list may look": plain(17, 3004, 3005, 3009, 3010),
    "brokers serve no routes; the answer is 3": plain(105),
}
"""Requests that are refused to other accounts than RocketMQ refuses them to, or in other words, by reason."""


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
            pass  # brokers send requests to clients as well
        return answer

    return ask


def all_told(ask: Ask, root: Credentials) -> dict[str, list[str]]:
    """Return the lines of all requests, by request."""
    make_accounts(ask, root)
    found = store(ask, root)
    return {str(case): list(told(ask, case, found)) for case in cases(codes())}


@pytest.fixture(scope="module")
def recorded() -> dict[str, list[str]]:
    """Return what a real RocketMQ says. With `RECORDED_FROM`, ask it first and record its answers."""
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


def test_failed_authentication_is_answered_as_by_rocketmq_for_every_code(recorded, ours) -> None:
    assert recorded.keys() == ours.keys()
    for case, lines in ours.items():
        assert lines[:4] == recorded[case][:4], case


def test_refusals_differ_from_rocketmqs_only_in_the_listed_cases(recorded, ours) -> None:
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
