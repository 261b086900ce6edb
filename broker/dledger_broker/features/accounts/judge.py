"""Judge of requests: whose each is, and what its account may do, by the accounts that this node has applied.

The words are those of RocketMQ 5.3.3, and what was asked for stands behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dledger_broker.features.accounts.addresses import Matches, compile_address
from dledger_broker.features.accounts.changes import MAX_NAME_CHARS
from dledger_broker.features.accounts.rules import AccountRules, Decision
from dledger_broker.features.accounts.sealing import KeyFile, SealError
from dledger_broker.features.accounts.table import ACCOUNTS, Account, AccountTable
from dledger_broker.kernel.access import AccessRefused
from dledger_broker.kernel.requests import Principal, Request
from dledger_broker.kernel.rights import Action, Demand, ResourceKind
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.errors import SystemBusy
from dledger_remoting.root_account import ROOT
from dledger_remoting.signatures import ACCESS_KEY_FIELD, SIGNATURE_FIELD, is_signed_with

_CLIENT_ACTIONS: Final = frozenset({Action.PUB, Action.SUB, Action.GET, Action.LIST})
"""What a client without an account may do to topics and groups, if its address lets it in."""


class Accounts:
    """See `kernel.access.Judge`. `cluster` is the name of the cluster in rules."""

    def __init__(self, keys: KeyFile, cluster: str) -> None:
        self._keys = keys
        self._cluster = cluster
        self._secrets: dict[str, tuple[int, str]] = {}
        self._rules: dict[str, AccountRules] = {}
        self._white_lists: dict[tuple[str, ...], Sequence[Matches]] = {}
        self._changes = -1

    @property
    def judges(self) -> bool:
        """See `Judge.judges`."""
        return True

    @property
    def obstacle(self) -> str | None:
        """See `Judge.obstacle`."""
        return None

    def keep_table(self, state: BrokerState) -> None:
        """The state is another one."""
        self._table: AccountTable = state.table(ACCOUNTS)
        self._changes = -1

    def _current(self) -> AccountTable:
        """The table; what was made of an earlier one is forgotten."""
        table = self._table
        if table.changes != self._changes:
            self._changes = table.changes
            self._secrets.clear()
            self._rules.clear()
            self._white_lists.clear()
        return table

    # ---------------------------------------------------------------- who

    def by_address(self, request: Request) -> Principal | None:
        """See `Judge.by_address`."""
        name, address, table = request.ext.get(ACCESS_KEY_FIELD, ""), request.origin.address.ip, self._current()
        if len(name) > MAX_NAME_CHARS:
            raise AccessRefused(f"User:{name[:64]}... is not found.", certain=True)
        if self._is_signed(request):
            return None  # an administrator who signs is one, also within the account's white list
        account = table.get(name) if name else None
        if account is not None and self._is_listed(account.put.white_list, address):
            return Principal(name, account.version, by_address=True)
        if name:
            return None
        if self._is_listed(table.white_list, address):
            return Principal("", by_address=True)
        raise AccessRefused("username cannot be null.", certain=True)

    def _is_signed(self, request: Request) -> bool:
        """Whether a request carries a signature that is right, as far as this node knows."""
        if SIGNATURE_FIELD not in request.ext:
            return False
        try:
            self.by_signature(request)
        except (AccessRefused, SystemBusy):
            return False
        return True

    def _is_listed(self, patterns: tuple[str, ...], address: str) -> bool:
        if not patterns:
            return False
        compiled = self._white_lists.get(patterns)
        if compiled is None:
            compiled = self._white_lists[patterns] = tuple(map(compile_address, patterns))
        return any(matches(address) for matches in compiled)

    def by_signature(self, request: Request) -> Principal:
        """See `Judge.by_signature`."""
        command = request.decoded()
        name = command.ext.get(ACCESS_KEY_FIELD, "")
        if not name:
            raise AccessRefused("username cannot be null.", certain=True)
        if name == ROOT:
            secrets, version = self._keys.root_secrets, 0
        else:
            account = self._enabled(name)
            secrets, version = (self._secret_of(account),), account.version
        found = [is_signed_with(secret, command.ext, request.body, command.version) for secret in secrets]
        if not any(found):
            raise AccessRefused(f"check signature failed. (User:{name})")
        return Principal(name, version)

    def _enabled(self, name: str) -> Account:
        account = self._current().get(name)
        if account is None:
            raise AccessRefused(f"User:{name} is not found.")
        if not account.put.enabled:
            raise AccessRefused(f"User:{name} is disabled.")
        return account

    def _secret_of(self, account: Account) -> str:
        """Raises `SystemBusy` if this node cannot open it: another one may."""
        name = account.put.name
        known = self._secrets.get(name)
        if known is None or known[0] != account.version:
            try:
                known = account.version, self._keys.open(account.put.sealed, name)
            except SealError as error:
                raise SystemBusy(f"this node cannot judge: {error}: nothing was done, try again later") from error
            self._secrets[name] = known
        return known[1]

    def is_current(self, principal: Principal, address: str) -> bool:
        """See `Judge.is_current`. An address that a white list has no more gives nothing, also to what waits."""
        if principal.is_node or principal.name == ROOT:
            return True
        if not principal.by_address:
            return self._enabled(principal.name).version == principal.version
        table = self._current()
        listed = self._enabled(principal.name).put.white_list if principal.name else table.white_list
        return self._is_listed(listed, address)

    # ---------------------------------------------------------------- what

    def require(self, principal: Principal, address: str, demand: Demand) -> None:
        """See `Judge.require`."""
        if self._is_admin(principal):
            return
        if demand.kind is ResourceKind.CLUSTER:
            demand = demand._replace(name=self._cluster)
        decision = self._decide(principal, demand, address)
        if decision is not Decision.ALLOWED:
            why = "the decision is deny" if decision is Decision.DENIED else "no matched policies"
            raise AccessRefused(
                f"User:{principal.name} has no permission to access {demand.kind}:{demand.name} from {address}, {why}. "
                f"({' or '.join(demand.actions)})"
            )

    def _decide(self, principal: Principal, demand: Demand, address: str) -> Decision:
        if not principal.name:
            is_open = demand.kind is not ResourceKind.CLUSTER and not _CLIENT_ACTIONS.isdisjoint(demand.actions)
            return Decision.ALLOWED if is_open else Decision.NOTHING_SAID
        put = self._enabled(principal.name).put
        rules = self._rules.get(put.name)
        if rules is None:
            rules = self._rules[put.name] = AccountRules(put.custom, put.default)
        return rules.decide(demand, address)

    def require_admin(self, principal: Principal, address: str) -> None:
        """See `Judge.require_admin`."""
        if not self._is_admin(principal):
            raise AccessRefused(
                f"User:{principal.name} has no permission to access Cluster:{self._cluster} from {address}, no matched "
                "policies. (administrators only)"
            )

    def _is_admin(self, principal: Principal) -> bool:
        if principal.name == ROOT:
            return not principal.by_address
        account = self._current().get(principal.name)
        return account is not None and account.put.admin and account.put.enabled and not principal.by_address
