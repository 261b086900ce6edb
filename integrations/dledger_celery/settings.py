"""Settings of a kombu connection: its URL, and the transport options."""

from __future__ import annotations

import difflib
import re
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from dledger_client import Credentials, Tls

from .envelopes import Untyped
from .names import Names

DEFAULT_PORT: Final = 9876
SCHEMES: Final = ("dledger", "dledgers")
MIN_VISIBILITY_SECONDS: Final = 3.0
MAX_VISIBILITY_SECONDS: Final = 12 * 3_600.0
EXPECTED: Final = "expected dledger://[account:secret@]host:port[,host:port][/virtual-host][?option=value]"

_KOMBUS_OPTIONS: Final = frozenset(
    {
        "body_encoding", "callback", "connect_retries_timeout", "confirm_publish", "deadletter_queue", "errback",
        "interval_max", "interval_start", "interval_step", "max_retries", "polling_interval",
    }
)  # fmt: skip
"""Options that kombu and Celery read themselves."""
_SECRET: Final = re.compile(r"(://[^:/@]*):.*@", re.DOTALL)
"""An account's name and secret in a URL. The secret may have characters that it should not have."""
_TLS_NAMES: Final = {"ca_certs": "ca_file", "certfile": "cert_file", "keyfile": "key_file"}
"""Names in kombu's `ssl` of what `Tls` has."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Transport options, with their defaults. Times are in seconds.

    visibility_timeout  how long a message that nobody works on any more stays hidden, 3 to 43,200
    max_deliveries      number of deliveries after which a message is a dead letter; None: as the group's settings say
    longest_delay       longest delay for which brokers are asked, their `timer_max_delay_s`; longer ones are renewed
    timeout             time limit of a request, over all its attempts
    topic_queues        queues of a topic that is created here, on each broker group
    idempotent          whether a task that is sent again with the same id, retry number and content is stored once
    access_key          account for which requests are signed; `secret_key` is its secret
    tls                 true, or the fields of `dledger_client.Tls`
    """

    visibility_timeout: float = 60.0
    max_deliveries: int | None = None
    longest_delay: float = 259_200.0
    timeout: float = 10.0
    topic_queues: int = 8
    idempotent: bool = True
    access_key: str | None = None
    secret_key: str | None = None
    tls: bool | dict[str, str | bool] = False


class Settings(msgspec.Struct, frozen=True):
    """Addresses, account and options of a connection. No text of this object shows a secret."""

    name_servers: tuple[str, ...]
    names: Names
    credentials: Credentials | None
    tls: Tls | None
    visibility_timeout: float
    max_deliveries: int | None
    longest_delay: float
    timeout: float
    topic_queues: int
    idempotent: bool


def settings_of(client: Untyped) -> Settings:
    """Return the settings of a `kombu.Connection`. Raises `ValueError` with what to set instead."""
    url = _split(client.hostname or "localhost", client.port)
    options = _options({**dict(parse_qsl(url.query, keep_blank_values=True)), **client.transport_options}, url.query)
    virtual_host = unquote(url.path).strip("/") or (client.virtual_host or "").strip("/")
    return Settings(
        _name_servers(url),
        Names(virtual_host),
        _credentials(options, client, url),
        _tls(options.tls, client.ssl, is_wanted=url.scheme == "dledgers" or client.transport_cls == "dledgers"),
        options.visibility_timeout,
        options.max_deliveries,
        options.longest_delay,
        options.timeout,
        options.topic_queues,
        options.idempotent,
    )


def masked(url: str, mask: str = "**") -> str:
    """Return a URL with a mask in place of its secret, for logs. Too much is masked rather than too little."""
    return _SECRET.sub(lambda match: f"{match[1]}:{mask}@", url)


def _split(hostname: str, port: int | None) -> SplitResult:
    """Return the parts of the URL. Kombu may have split it already, for a second URL behind a `;`."""
    if "://" not in hostname:
        hostname = f"dledger://{hostname}" + (f":{port}" if port else "")
    url = urlsplit(hostname)
    if url.scheme not in SCHEMES:
        raise ValueError(f"{masked(hostname)!r} is no URL of a cluster: {EXPECTED}")
    if "@" in url.path + url.query + url.fragment:
        raise ValueError(f"{masked(hostname)!r}: write /, ?, # and @ of a secret as %2F, %3F, %23 and %40")
    return url


def _name_servers(url: SplitResult) -> tuple[str, ...]:
    hosts = url.netloc.rpartition("@")[2].split(",")
    addresses = []
    for host in hosts:
        name, colon, port = host.strip().rpartition(":")
        if "]" in port or not colon:
            name, port = host.strip(), str(DEFAULT_PORT)
        if not name or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise ValueError(f"name server {host!r} is not host:port: {EXPECTED}")
        addresses.append(f"{name}:{port}")
    return tuple(addresses)


def _options(given: Mapping[str, object], query: str) -> Options:
    """Return the options, of which those of the URL are text. Raises `ValueError` that names the option."""
    wanted = {name: value for name, value in given.items() if name not in _KOMBUS_OPTIONS}
    for name in wanted:
        if name not in Options.__struct_fields__:
            close = difflib.get_close_matches(name, Options.__struct_fields__, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(Options.__struct_fields__)}"
            raise ValueError(f"transport option {name!r} is not known: {hint}")
    if "secret_key" in dict(parse_qsl(query)):
        raise ValueError(
            "secret_key is no option of a URL: write dledger://account:secret@host:port, or a transport option"
        )
    try:
        options = msgspec.convert(wanted, Options, strict=False)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("`$.")[2].rstrip("`")
        raise ValueError(f"transport option {name}: {str(error).partition(' - at')[0]}") from None
    _require("visibility_timeout", options.visibility_timeout, MIN_VISIBILITY_SECONDS, MAX_VISIBILITY_SECONDS)
    _require("longest_delay", options.longest_delay, 1, 3_456_000)
    _require("timeout", options.timeout, 0.1, 3_600)
    _require("topic_queues", options.topic_queues, 1, 1_024)
    if options.max_deliveries is not None:
        _require("max_deliveries", options.max_deliveries, 1, 10_000)
    return options


def _require(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"transport option {name} is {value:g}, which is outside {low:g} to {high:g}")


def _credentials(options: Options, client: Untyped, url: SplitResult) -> Credentials | None:
    account, _, secret = url.netloc.rpartition("@")[0].partition(":")
    access_key = options.access_key or unquote(account) or client.userid
    secret_key = options.secret_key or unquote(secret) or client.password
    if callable(secret_key):
        secret_key = secret_key()
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        missing = "access_key" if not access_key else "secret_key"
        raise ValueError(f"an account needs a name and a secret: {missing} is missing ({EXPECTED})")
    return Credentials(access_key, secret_key)


def _tls(option: bool | Mapping[str, str | bool], kombus: Untyped, *, is_wanted: bool) -> Tls | None:
    """Return the TLS of the option `tls`, of kombu's `ssl` (Celery's `broker_use_ssl`), or of the scheme."""
    given = option or kombus
    if not given and not is_wanted:
        return None
    if not isinstance(given, Mapping):
        return Tls()
    fields: dict[str, Untyped] = {_TLS_NAMES.get(name, name): value for name, value in given.items()}
    if fields.pop("cert_reqs", ssl.CERT_REQUIRED) not in {ssl.CERT_REQUIRED, "required", "CERT_REQUIRED"}:
        raise ValueError("cert_reqs: certificates of servers are always checked; name their authority in ca_file")
    for name in fields:
        if name not in Tls.__dataclass_fields__:
            raise ValueError(f"tls: {name} is not known: known are {', '.join(Tls.__dataclass_fields__)}")
    return Tls(**fields)
