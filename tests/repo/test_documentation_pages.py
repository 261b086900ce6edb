"""Pages that list parts of the code list all of them and nothing else."""

import re
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import Mock

import pytest

from dledger_broker.broker_conf import WITHOUT_EFFECT
from dledger_broker.config import KEYS as BROKER
from dledger_broker.config import BrokerConfig
from dledger_broker.features.client_membership.members import LEADER_CHANGED_CODE
from dledger_broker.frontend.refused_codes import INSTEAD
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.testing import BrokerInMemory
from dledger_namesrv.answers import INSTEAD as NAMESRV_INSTEAD
from dledger_namesrv.config import IMPOSSIBLE, NameServerConfig
from dledger_namesrv.config import KEYS as NAME_SERVER
from dledger_namesrv.config import WITHOUT_EFFECT as NAMESRV_WITHOUT_EFFECT
from dledger_namesrv.processors import Processors
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import RequestCodeNotSupported
from tests.broker.served_broker import NODE_ID, ServedBroker, make_served_broker
from tests.conformance.mqadmin import ACCOUNT_COMMANDS, ACCOUNTS_OFF, COMMANDS, NEW, OLD, read_sections

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CONFIGURATION = (DOCS / "configuration.md").read_text()
BROKER_PART, NAMESRV_PART = CONFIGURATION.split("\n## Name server\n")
BROKER_KEYS, BROKER_ALIASES = BROKER_PART.split("\n### Keys of RocketMQ's `broker.conf`\n")
NAMESRV_PART, NAMESRV_ALIASES = NAMESRV_PART.split("\n### Keys of RocketMQ's `namesrv.conf`\n")
BROKER_CODES, NAMESRV_CODES = (DOCS / "compatibility.md").read_text().split("\n## Name servers\n")
NAMESRV_ANSWERED, NAMESRV_REFUSED = NAMESRV_CODES.split("\n### Requests that name servers refuse\n")
ANSWERED, REFUSED = BROKER_CODES.split("\n### Requests that are refused\n")
ANSWERED, PUSHED = ANSWERED.split("\nBrokers send to clients:\n")
OWN_CODES, OWN_NAMESRV_CODES = (DOCS / "wire.md").read_text().split("\nName servers answer:\n")
MQADMIN_COMPARED, MQADMIN = (
    REFUSED.split("\n### Commands of mqadmin\n")[1].split("\n### ")[0].split("\n| commands | |\n")
)
CODE = re.compile(r"\b(\d+) (?:\| )?`([A-Z_0-9]+)`")
TEST_NAME = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def keys_of(page: str) -> dict[str, str]:
    """Return the keys in the tables of a page, with their default."""
    return dict(re.findall(r"^\| `(\w+)`(?: \(live\))? \| (.+?) \| .* \| .* \|$", page, re.MULTILINE))


def test_every_limit_has_the_counter_that_the_page_names():
    page = " ".join(BROKER_KEYS.split("\n### Limits\n")[1].split())
    assert "`dledger_broker_` and the limit's name, without `_ms`, and `_total`" in page
    limits = [key.name.removesuffix("_ms") for key in BROKER.by_name.values() if key.section.__name__ == "Limits"]
    assert len(limits) > 20
    assert set(limits) <= BrokerCounters().as_dict().keys()


def test_every_alias_of_rocketmq_stands_on_the_page():
    assert {*BROKER.aliases, *WITHOUT_EFFECT} <= set(re.findall(r"`([\w.]+)`", BROKER_ALIASES))
    known = {*NAME_SERVER.aliases, *NAMESRV_WITHOUT_EFFECT, *IMPOSSIBLE}
    assert known <= set(re.findall(r"`([\w.]+)`", NAMESRV_ALIASES))


def codes_of(*parts: str) -> dict[int, str]:
    """Return the request codes that a page names, each once, with their names."""
    found = [(int(code), name) for part in parts for code, name in CODE.findall(part)]
    assert len(dict(found)) == len(found)
    return dict(found)


def named(codes: Iterable[int]) -> dict[int, str]:
    """Return request codes with their names."""
    return {int(code): RequestCode(code).name for code in codes}


def served_broker() -> ServedBroker:
    """Return a broker with all features that serve requests."""
    config = BrokerConfig(broker_group="broker-a", node_id=NODE_ID, data_dir=Path("unused"))
    return make_served_broker(config, BrokerInMemory())


def test_the_request_codes_that_brokers_answer_are_those_on_the_pages():
    answered = codes_of(ANSWERED, OWN_CODES)
    assert answered == named(served_broker().service.parts.routes())
    assert f"| {LEADER_CHANGED_CODE} |" in OWN_CODES


def test_every_request_code_of_rocketmq_is_known_by_number_and_stands_on_the_page_once():
    own = codes_of(OWN_CODES, OWN_NAMESRV_CODES)
    listed = codes_of(ANSWERED, PUSHED, REFUSED) | codes_of(NAMESRV_ANSWERED, NAMESRV_REFUSED)
    assert listed == named(set(RequestCode) - set(own))
    releases = (ROOT / "tests/remoting/rocketmq_request_codes.txt").read_text().splitlines()
    numbers = {int(line.split()[0]) for line in releases if not line.startswith("#")}
    assert len(numbers) > 150
    assert numbers <= {int(code) for code in RequestCode}


def test_requests_that_the_page_calls_refused_are_refused_by_name_and_say_what_to_do_instead():
    """No release handles the codes that have no such advice."""
    client = served_broker().client()
    for code, name in codes_of(REFUSED).items():
        answer = client.call(code)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, name
        assert f"request type {code} not supported ({name})" in (answer.remark or "")
    with_reason, without_reason = REFUSED.split("| what RocketMQ's own brokers refuse |")
    assert INSTEAD.keys() == codes_of(with_reason).keys()
    assert INSTEAD.keys().isdisjoint(codes_of(without_reason))
    answer = client.call(RequestCode.CONTROLLER_ELECT_MASTER)
    assert "a group elects its leader itself" in (answer.remark or "")


def name_server() -> Processors:
    """Return the request handlers of a name server, without a real server."""
    return Processors(NameServerConfig(), Mock(), Mock(), lambda: 0)


def test_the_request_codes_that_name_servers_answer_are_those_on_the_pages():
    processors = name_server()
    answered = {RequestCode.REGISTER_BROKER, *processors._immediate_processors, *processors._waiting_processors}
    assert codes_of(NAMESRV_ANSWERED, OWN_NAMESRV_CODES.partition("\n## ")[0]) == named(answered)


def test_a_name_server_refuses_what_the_page_calls_refused_and_says_what_to_do_instead_as_a_broker_does():
    for code, name in codes_of(NAMESRV_REFUSED).items():
        said = f"request type {code} ({name}) not supported by a name server: {NAMESRV_INSTEAD[code]}"
        with pytest.raises(RequestCodeNotSupported, match=f"^{re.escape(said)}$"):
            name_server().handle(RemotingCommand(code), connection=1)
    shared = NAMESRV_INSTEAD.keys() & INSTEAD.keys()
    assert RequestCode.CONTROLLER_ELECT_MASTER in shared
    assert {code: NAMESRV_INSTEAD[code] for code in shared} == {code: INSTEAD[code] for code in shared}


def rows_of(table: str) -> list[tuple[str, str]]:
    """Return the names in the first column of a table, each with the text beside it."""
    rows = [line.split(" | ", 1) for line in table.splitlines() if line.startswith("| ")]
    return [(name, text) for names, text in rows for name in re.findall(r"`(\w+)", names)]


def test_every_command_of_mqadmin_stands_on_the_page_and_what_is_refused_or_compared_in_part_is_named_as_such():
    said = rows_of(MQADMIN)
    assert {name for name, _ in said} == {command.name for command in COMMANDS}
    refused = {command.name for command in COMMANDS if command.refused is not None}
    of_accounts = {name for name, text in said if "access control" in text}
    assert {name for name, text in said if text.startswith("refused")} == refused - of_accounts
    partly = {one.name for one in (*COMMANDS, *ACCOUNT_COMMANDS) if one.about or one.settings or one.writes}
    guarded = {one.name for one in COMMANDS if one.refused == ACCOUNTS_OFF}
    silent = {one.name for one in COMMANDS if one.says_nothing}
    assert {name for name, _ in rows_of(MQADMIN_COMPARED)} == partly | guarded | silent


def test_every_mqadmin_command_that_is_not_refused_has_a_recording():
    recordings = {version: f"mqadmin_{version}.txt" for version in (OLD, NEW)}
    for version, name in recordings.items():
        compared = {one.words for one in COMMANDS if one.only in (None, version) and one.refused is None}
        assert read_sections((ROOT / "tests/conformance" / name).read_text()).keys() == compared
    accounts = read_sections((ROOT / "tests/conformance/mqadmin_accounts_5.3.3.txt").read_text())
    assert accounts.keys() == {one.words for one in ACCOUNT_COMMANDS}


def test_every_test_that_a_page_names_exists():
    for page in DOCS.rglob("*.md"):
        for file, name in TEST_NAME.findall(page.read_text()):
            assert (ROOT / file).is_file(), f"{page}: {file}"
            if name:
                assert f"def {name}(" in (ROOT / file).read_text(), f"{page}: {file}::{name}"


def test_every_fault_found_names_a_test_or_seed_against_it():
    seeds = {" ".join(line.split()[:2]) for line in (ROOT / "tests/sim/seeds.txt").read_text().splitlines()}
    faults = re.findall(r"^\| .+ \| .+ \| (.+) \|$", (DOCS / "proof/regressions.md").read_text(), re.MULTILINE)
    assert len(faults) > 100
    for kept_away_by in faults:
        assert kept_away_by in {"–", "test"} or TEST_NAME.search(kept_away_by) or "seeds.txt" in kept_away_by
        assert set(re.findall(r"seed `(\w+ \d+)`", kept_away_by)) <= seeds


def test_every_page_is_reached_from_the_index():
    index = (DOCS / "README.md").read_text()
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"README.md"}
    assert not {page for page in pages if f"({page})" not in index}
