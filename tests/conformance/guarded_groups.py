"""A group with access control, an account that may use one topic, and an account that may do nothing."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from dledger_base.issuing import Authority
from dledger_broker.features.accounts.sealing import read_key_file
from dledger_client import AccessRule, AccountAdmin, Credentials, SyncAdmin, Tls
from dledger_client.testing import LocalCluster, local_cluster_fixture
from dledger_remoting.accounts import ROOT
from tests.access_keys import KEY_FILE

ROOT_ACCOUNT: Final = Credentials(ROOT, read_key_file(KEY_FILE).root_secrets[0])
APP: Final = Credentials("app", "secret-of-app")
STRANGER: Final = Credentials("stranger", "secret-of-stranger")
TOPIC: Final = "Signed"

GUARDED: Final = f'segment_bytes = 4194304\naccess_key_file = "{KEY_FILE}"\n[namesrv]\naccess_key_file = "{KEY_FILE}"\n'

guarded_group = local_cluster_fixture(scope="module", config=GUARDED)


@pytest.fixture(scope="module")
def guarded(guarded_group: LocalCluster) -> LocalCluster:
    """Return a group with an account that may send to and consume one topic, and one that may do nothing."""
    make_accounts(guarded_group.namesrv)
    return guarded_group


def make_accounts(namesrv: str, tls: Tls | None = None) -> None:
    """Create the topic and both accounts, and give one its rights."""

    async def prepare() -> None:
        async with AccountAdmin(namesrv, ROOT_ACCOUNT, tls=tls) as admin:
            for who in (APP, STRANGER):
                await admin.create(who.access_key, who.secret)
            await admin.grant("app", AccessRule(f"Topic:{TOPIC}", ("Pub", "Sub", "Get")))
            await admin.grant("app", AccessRule("Group:*", ("Sub",)))

    asyncio.run(prepare())
    with SyncAdmin(namesrv, credentials=ROOT_ACCOUNT, tls=tls) as admin:
        admin.create_topic(TOPIC, queues=2)


def issue_tls(folder: Path, *others: str) -> tuple[str, str]:
    """Write the certificates of an authority, of all nodes, and of others.

    Return the settings of every server, and those by which nodes trust each other and name servers.
    """
    authority = Authority("a test", timedelta(days=1))
    (folder / "ca.pem").write_bytes(authority.certificate)
    for name in ("node", *others):
        authority.issue(name, ["127.0.0.1"]).write(folder / f"{name}.pem", folder / f"{name}-key.pem")
    own = f'tls = "enforcing"\ntls_cert_file = "{folder}/node.pem"\ntls_key_file = "{folder}/node-key.pem"\n'
    return own, f'tls_namesrv_ca_file = "{folder}/ca.pem"\ntls_peer_ca_file = "{folder}/ca.pem"\n'
