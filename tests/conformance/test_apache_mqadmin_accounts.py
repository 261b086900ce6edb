"""Commands of Apache RocketMQ's own `mqadmin` 5.3.3 for accounts and their rules, unmodified, with access control on.

The output of each command has the same shape as with a real RocketMQ 5.3.3, recorded in `mqadmin_accounts_5.3.3.txt`.
`make test-clients` runs this. To record again, start a RocketMQ with authentication, authorization and an
administrator, and run:

    RECORD_ACCOUNTS=NAMESRV,BROKER_ADDRESS,ADMINISTRATOR,SECRET make test-clients
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import pytest
from conftest import HERE, started_mqadmin
from guarded_groups import GUARDED, ROOT_ACCOUNT
from mqadmin import ACCOUNT_COMMANDS, NEW, Command, differences, read_sections, sections, shape_of

from dledger_client import Credentials
from dledger_client.testing import LocalCluster, local_cluster_fixture

RECORDED_FROM: Final = os.environ.get("RECORD_ACCOUNTS")
RECORDING: Final = HERE / f"mqadmin_accounts_{NEW}.txt"
SECONDS: Final = 40

accounts_group = local_cluster_fixture(scope="module", config=GUARDED)


@pytest.fixture(scope="module")
def where(request: pytest.FixtureRequest) -> tuple[str, str, Credentials]:
    """Return the name server, the leader, and the administrator."""
    if RECORDED_FROM:
        namesrv, address, name, secret = RECORDED_FROM.split(",")
        return namesrv, address, Credentials(name, secret)
    group: LocalCluster = request.getfixturevalue("accounts_group")
    return group.namesrv, group.client_address(group.leader()), ROOT_ACCOUNT


@pytest.fixture(scope="module")
def names(where: tuple[str, str, Credentials]) -> dict[str, str]:
    """Return the values of the names in braces."""
    return {"address": where[1], "user": "someone", "secret": "secret-of-someone"}


@pytest.fixture(scope="module")
def printed(
    request: pytest.FixtureRequest,
    where: tuple[str, str, Credentials],
    names: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, str]:
    """Return the output of each command, by its words with names in braces."""
    namesrv, _, account = where
    found = {}
    with started_mqadmin(request, NEW, tmp_path_factory.mktemp("mqadmin"), account) as tools:
        for command in ACCOUNT_COMMANDS:
            words = f"{command.words.format(**names)} -n {namesrv}".split()
            found[command.words] = str(tools.call("run", timeout=2 * SECONDS, words=words, seconds=SECONDS))
    if RECORDED_FROM:
        shapes = [(one.words, shape_of(one, found[one.words], names)) for one in ACCOUNT_COMMANDS]
        RECORDING.write_text(sections(shapes))
    return found


@pytest.mark.parametrize("command", ACCOUNT_COMMANDS, ids=lambda command: command.words)
def test_a_mqadmin_account_command_prints_the_same_as_with_rocketmq(
    command: Command, printed: Mapping[str, str], names: Mapping[str, str]
) -> None:
    text = printed[command.words]
    recorded = read_sections(RECORDING.read_text())
    assert differences(command, text, recorded, names) == ([], []), f"it printed:\n{text}"
