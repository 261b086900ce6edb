"""A group with access control, an account that may use one topic there, and one that may do nothing."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from dledger_broker.features.accounts.sealing import read_key_file
from dledger_client import AccessRule, AccountAdmin, Credentials, SyncAdmin
from dledger_client.testing import LocalCluster, local_cluster_fixture
from dledger_remoting.root_account import ROOT
from tests.access_keys import KEY_FILE

ROOT_ACCOUNT: Final = Credentials(ROOT, read_key_file(KEY_FILE).root_secrets[0])
APP: Final = Credentials("app", "secret-of-app")
STRANGER: Final = Credentials("stranger", "secret-of-stranger")
TOPIC: Final = "Signed"

GUARDED: Final = f'segment_bytes = 4194304\naccess_key_file = "{KEY_FILE}"\n[namesrv]\naccess_key_file = "{KEY_FILE}"\n'

guarded_group = local_cluster_fixture(scope="module", config=GUARDED)


@pytest.fixture(scope="module")
def guarded(guarded_group: LocalCluster) -> LocalCluster:
    """A group with an account that may send to and consume a topic, and one that may do nothing."""

    async def prepare() -> None:
        async with AccountAdmin(guarded_group.namesrv, ROOT_ACCOUNT) as admin:
            for who in (APP, STRANGER):
                await admin.create(who.access_key, who.secret)
            await admin.grant("app", AccessRule(f"Topic:{TOPIC}", ("Pub", "Sub", "Get")))
            await admin.grant("app", AccessRule("Group:*", ("Sub",)))

    asyncio.run(prepare())
    with SyncAdmin(guarded_group.namesrv, credentials=ROOT_ACCOUNT) as admin:
        admin.create_topic(TOPIC, queues=2)
    return guarded_group
