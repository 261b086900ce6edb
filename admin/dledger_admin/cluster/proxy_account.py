"""Account of the proxy that `up` starts in a secured cluster: made in the cluster once its groups have leaders.

The account may speak for others, and look at topics and groups, and nothing more.
"""

from __future__ import annotations

import asyncio
from typing import Final

from dledger_base.access_keys import access_keys
from dledger_base.errors import ConfigError
from dledger_client import AccessRule, AccountAdmin, ClientError, Tls
from dledger_remoting.accounts import root_credentials

from ..errors import AdminError
from .layout import ClusterLayout
from .securing import KEY_FILE, PROXY_ACCOUNT_FILE, secure_folder

RULES: Final = (
    AccessRule("Cluster:*", ("Speak",)),
    AccessRule("Topic:*", ("Get",)),
    AccessRule("Group:*", ("Get",)),
)
"""Rules of the proxy's account."""


def make_proxy_account(layout: ClusterLayout) -> None:
    """Make the account in all groups, or give it the secret in its file, and add the rules that it lacks.

    A rule on the same resource that an operator has changed stays. Raises `AdminError` if a group does not do it.
    """
    file = secure_folder(layout) / PROXY_ACCOUNT_FILE
    try:
        name, secret = file.read_text(encoding="utf-8").split()
        asyncio.run(_make(layout, name, secret))
    except (ClientError, ConfigError, OSError, ValueError) as error:
        raise AdminError(
            f"the proxy's account, in {file}, could not be made, so the proxy is refused: {error}; "
            "repeat `dledger up` once every group has a leader"
        ) from error


async def _make(layout: ClusterLayout, name: str, secret: str) -> None:
    folder = secure_folder(layout)
    administrator = root_credentials(access_keys(folder / KEY_FILE))
    async with AccountAdmin(layout.namesrv_address, administrator, tls=Tls(folder / "ca.pem")) as admin:
        accounts = await admin.accounts()
        if all(name in {account.name for account in of_group} for of_group in accounts.values()):
            await admin.change(name, secret=secret)  # a new key file makes earlier secrets unreadable
        else:
            await admin.delete(name)  # some groups may have it: the start before was interrupted
            await admin.create(name, secret)
        rules = await admin.rules()
        for rule in RULES:
            resources = [{had.resource for had in of_group.get(name, ())} for of_group in rules.values()]
            if not all(rule.resource in of_group for of_group in resources):
                await admin.grant(name, rule)
