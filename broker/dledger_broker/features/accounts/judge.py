"""Judge of requests: authenticates each request and checks its rights, by the accounts that this node has applied.

Refusals have the texts of RocketMQ 5.3.3, followed by the requested action.

Wrong signatures are limited for each pair of an account and a client address. The account alone is never limited,
because its owner at another address would be locked out. A connection that has signed correctly once is not limited,
because many clients may share an address.

A proxy may send a request for its client (`dledger_remoting.speech`). The proxy signs the request, and needs the right
to speak for others. The client's own signature, which covers only a date, then decides whose rights the request has. A
signature of a date must not make anybody an administrator, so these requests have no administrator's rights on the
cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dledger_broker.features.access.table import ACCESS, AccessTable
from dledger_broker.features.accounts.addresses import Matches, compile_address
from dledger_broker.features.accounts.changes import MAX_NAME_CHARS
from dledger_broker.features.accounts.rules import AccountRules, Decision
from dledger_broker.features.accounts.sealing import KeyFile, SealError
from dledger_broker.features.accounts.signed_dates import SignedDates
from dledger_broker.features.accounts.table import ACCOUNTS, Account, AccountTable, PutAccount
from dledger_broker.kernel.access import AccessRefused
from dledger_broker.kernel.requests import Principal, Request
from dledger_broker.kernel.rights import Action, Demand, ResourceKind
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.accounts import ROOT
from dledger_remoting.errors import InvalidParameter, SystemBusy
from dledger_remoting.signatures import ACCESS_KEY_FIELD, NOT_SIGNED, SIGNATURE_FIELD, is_signed_with
from dledger_remoting.speech import Speech, is_for_another, speech_in

BURST: Final = 20
"""Number of wrong signatures of an account from an address that are judged without delay."""
PER_S: Final = 2.0
"""Number of further wrong signatures that are judged per second."""
MAX_PAIRS: Final = 4_096


class WrongSignatures:
    """Counter of wrong signatures by account and address. Time is an argument, in seconds."""

    def __init__(self) -> None:
        self._levels: dict[tuple[str, str], tuple[float, float]] = {}
        """Level of each pair, and the time at which it was computed. A level falls by `PER_S`."""

    def are_too_many(self, account: str, address: str, now: float) -> bool:
        """Return whether a request must wait before it is judged."""
        return self._level((account, address), now) > BURST - 1

    def note(self, account: str, address: str, now: float) -> None:
        """Count a wrong signature."""
        pair = account, address
        level = self._level(pair, now) + 1
        self._levels.pop(pair, None)
        if len(self._levels) >= MAX_PAIRS:
            del self._levels[next(iter(self._levels))]  # the pair without a wrong signature for the longest time
        self._levels[pair] = level, now

    def _level(self, pair: tuple[str, str], now: float) -> float:
        level, at = self._levels.get(pair, (0.0, now))
        return max(0.0, level - (now - at) * PER_S)


_CLIENT_ACTIONS: Final = frozenset({Action.PUB, Action.SUB, Action.GET, Action.LIST})
"""Actions on topics and groups that a client without an account may do, if the global white list has its address."""


class Accounts:
    """Judge of a node with a key file; implements `kernel.access.Judge`.

    `cluster` is the name of the cluster in rules. `mode` is the configured `access_control`. `dates` judges the dates
    that clients of proxies sign.
    """

    def __init__(self, keys: KeyFile, cluster: str, dates: SignedDates, mode: str = "on") -> None:
        self._dates = dates
        self._keys = keys
        self._cluster = cluster
        self._judges = mode != "off"
        self._enforces = mode == "on"
        self._secrets: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._rules: dict[str, tuple[PutAccount, AccountRules]] = {}
        """Compiled rules by account, with the command that they are compiled from."""
        self._white_lists: dict[tuple[str, ...], Sequence[Matches]] = {}
        self._wrong_signatures = WrongSignatures()
        self._changes = -1
        self._generation = 0
        """Number of noticed changes of the account table. Verdicts of an earlier generation do not count."""

    @property
    def judges(self) -> bool:
        """Return whether requests are judged, by this node's configuration or by the broker group's decision."""
        return self._judges or self._access.since > 0

    @property
    def enforces(self) -> bool:
        """Return whether refusals take effect, or are only logged. The broker group's decision binds each of its
        nodes.
        """
        return self._enforces or self._access.since > 0

    @property
    def obstacle(self) -> str | None:
        """Return None: with a key file nothing prevents judging."""
        return None

    def keep_table(self, state: BrokerState) -> None:
        """Use the tables of a new state, and drop everything that was derived from the old tables."""
        self._table: AccountTable = state.table(ACCOUNTS)
        self._access: AccessTable = state.table(ACCESS)
        self._changes = -1

    def _current(self) -> AccountTable:
        """Return the account table. Drop what was derived from it if it has changed since the last call."""
        table = self._table
        if table.changes != self._changes:
            self._changes = table.changes
            self._generation += 1
            self._secrets.clear()
            for name, (put, _) in list(self._rules.items()):  # compiling a thousand rules takes long
                account = table.get(name)
                if account is None or account.put is not put:
                    del self._rules[name]
            self._white_lists.clear()
        return table

    # ---------------------------------------------------------------- authentication

    def by_address(self, request: Request) -> Principal | None:
        """Return the account that the client's address gives to a request; None if the signature decides.

        Raises `AccessRefused` for a request that names no account and whose address is in no white list. Raises it also
        for too long a name.
        """
        name, address, table = request.ext.get(ACCESS_KEY_FIELD, ""), request.origin.address.ip, self._current()
        if len(name) > MAX_NAME_CHARS:
            raise AccessRefused(f"User:{name[:64]}... is not found.", certain=True)
        if self._is_signed(request):
            # a signed request of an administrator keeps an administrator's rights, also within the account's white list
            return None
        if is_for_another(request.ext):
            return None  # the address is the proxy's, and gives its clients no account
        account = table.get(name) if name else None
        if account is not None and self._is_listed(account.put.white_list, address):
            return Principal(name, account.version, by_address=True)
        if name:
            return None
        if self._is_listed(table.white_list, address):
            return Principal("", by_address=True)
        raise AccessRefused(NOT_SIGNED, certain=True)

    def _is_signed(self, request: Request) -> bool:
        """Return whether a request has a signature that this node can verify."""
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
        """Return the account that a request is signed for, or sent for. Raises `AccessRefused` and `SystemBusy`."""
        signer = self._signer(request)
        try:
            speech = speech_in(request.ext)
        except InvalidParameter as error:
            raise AccessRefused(error.remark, certain=True) from error
        return signer if speech is None else self._client_of(request, signer, speech)

    def _signer(self, request: Request) -> Principal:
        """Return the account that a request is signed for. Raises `AccessRefused` and `SystemBusy`.

        The verdict is kept with the request, so that its signature is checked once for each generation of the table.
        """
        command = request.decoded()
        name = command.ext.get(ACCESS_KEY_FIELD, "")
        if not name:
            raise AccessRefused(NOT_SIGNED, certain=True)
        self._current()
        if name == ROOT:
            secrets, version = self._keys.root_secrets, 0
        else:
            account = self._enabled(name)
            secrets, version = self._secrets_of(account), account.version
        if request.verdict is None or request.verdict[0] != self._generation:
            if name != ROOT and not request.origin.is_trusted:  # nobody can guess the secret of `ROOT`
                self._require_patience(name, request.origin.address.ip, request.received)
            signs = any(is_signed_with(secret, command.ext, request.body, command.version) for secret in secrets)
            request.verdict = self._generation, signs
            if not signs:
                self._wrong_signatures.note(name, request.origin.address.ip, request.received)
        if not request.verdict[1]:
            raise AccessRefused(f"check signature failed. (User:{name})")
        return Principal(name, version)

    def _require_patience(self, name: str, address: str, now: float) -> None:
        """Raise `SystemBusy` after too many wrong signatures of an account from an address."""
        if self._wrong_signatures.are_too_many(name, address, now):
            raise SystemBusy(
                f"too many wrong signatures of {name} from {address}: check accessKey and secretKey, and try "
                "again in a second"
            )

    # ---------------------------------------------------------------- clients of proxies

    def _client_of(self, request: Request, signer: Principal, speech: Speech) -> Principal:
        """Return the account of the client that a proxy sends a request for. Raises `AccessRefused` and `SystemBusy`.

        A white list gives its account to the address that the proxy names, as it does to a client of this node. The
        accounts of key files are not in the table, so nobody speaks for them.
        """
        self._require_speaker(signer.name, request.origin.address.ip)
        name, address, table = speech.account, speech.address.ip, self._current()
        of_proxy = Principal("", speaker=signer.name, speaker_version=signer.version, ip=address)
        if len(name) > MAX_NAME_CHARS:
            raise AccessRefused(f"User:{name[:64]}... is not found.")
        if name and self._has_signed(request, speech):
            return of_proxy._replace(name=name, version=self._enabled(name).version)
        account = table.get(name) if name else None
        if account is not None and self._is_listed(account.put.white_list, address):
            return of_proxy._replace(name=name, version=account.version, by_address=True)
        if name:
            self._enabled(name)
            raise AccessRefused(f"check signature failed. (User:{name})")
        if self._is_listed(table.white_list, address):
            return of_proxy._replace(by_address=True)
        raise AccessRefused(NOT_SIGNED)

    def _has_signed(self, request: Request, speech: Speech) -> bool:
        """Return whether a client has signed a text with its account's secret. Raises `AccessRefused` if the text is
        too old, and `SystemBusy`.

        The channel is the proxy's, and what it has proven says nothing about its clients.
        """
        if not speech.signature or self._current().get(speech.account) is None:
            return False
        if request.spoken_verdict is None or request.spoken_verdict[0] != self._generation:
            self._require_patience(speech.account, speech.address.ip, request.received)
            secrets = self._secrets_of(self._enabled(speech.account))
            signs = any(speech.is_signed_with(secret) for secret in secrets)
            request.spoken_verdict = self._generation, signs
            if not signs:
                self._wrong_signatures.note(speech.account, speech.address.ip, request.received)
        if request.spoken_verdict[1]:
            self._dates.require_recent(speech, request.received)
        return request.spoken_verdict[1]

    def _require_speaker(self, name: str, address: str) -> None:
        """Raise `AccessRefused` unless an account may speak for others, from the address of its connection.

        Administrators need the right, too: an account that speaks for others should have no other right.
        """
        demand = Demand((Action.SPEAK,), ResourceKind.CLUSTER, self._cluster)
        if name == ROOT or self._decide(Principal(name), demand, address) is not Decision.ALLOWED:
            raise AccessRefused(
                f"User:{name} may not speak for others from {address}: give it the right {Action.SPEAK} on "
                f"Cluster:{self._cluster}"
            )

    # ---------------------------------------------------------------- accounts

    def _enabled(self, name: str) -> Account:
        account = self._current().get(name)
        if account is None:
            raise AccessRefused(f"User:{name} is not found.")
        if not account.put.enabled:
            raise AccessRefused(f"User:{name} is disabled.")
        return account

    def _secrets_of(self, account: Account) -> tuple[str, ...]:
        """Return the secrets that are valid for an account.

        Raises `SystemBusy` if this node cannot open them. Another node may have the key.
        """
        name = account.put.name
        opened = self._secrets.get(name)
        if opened is None or opened[0] != account.version:
            try:
                opened = account.version, self._keys.open_all(account.put.sealed, name)
            except SealError as error:
                raise SystemBusy(f"this node cannot judge: {error}: nothing was done, try again later") from error
            self._secrets[name] = opened
        return opened[1]

    def is_current(self, principal: Principal, address: str) -> bool:
        """Return whether an account is unchanged since it was accepted for a request.

        An address that was removed from its white list gives no rights any more, also to requests that wait. Raises
        `AccessRefused` if the account is deleted or disabled.
        """
        if principal.is_node or principal.name == ROOT:
            return True
        if principal.speaker:
            if self._enabled(principal.speaker).version != principal.speaker_version:
                return False
            address = principal.ip
        if not principal.by_address:
            return self._enabled(principal.name).version == principal.version
        table = self._current()
        listed = self._enabled(principal.name).put.white_list if principal.name else table.white_list
        return self._is_listed(listed, address)

    # ---------------------------------------------------------------- authorization

    def require(self, principal: Principal, address: str, demand: Demand) -> None:
        """Raise `AccessRefused` unless an account may do what `demand` says, from an address."""
        if principal.speaker:
            self._require_speaker(principal.speaker, address)
            address = principal.ip
        of_cluster = demand.kind is ResourceKind.CLUSTER
        if self._is_admin(principal) and not (principal.speaker and of_cluster):
            return
        if of_cluster:
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
        compiled = self._rules.get(put.name)
        if compiled is None:
            compiled = self._rules[put.name] = put, AccountRules(put.custom, put.default)
        return compiled[1].decide(demand, address)

    def require_admin(self, principal: Principal, address: str) -> None:
        """Raise `AccessRefused` unless an account is an administrator that has signed the request itself."""
        if principal.speaker or not self._is_admin(principal):
            raise AccessRefused(
                f"User:{principal.name} has no permission to access Cluster:{self._cluster} from "
                f"{principal.ip or address}, no matched policies. (administrators only)"
            )

    def _is_admin(self, principal: Principal) -> bool:
        if principal.name == ROOT:
            return not principal.by_address
        account = self._current().get(principal.name)
        return account is not None and account.put.admin and account.put.enabled and not principal.by_address
