"""Configuration keys of the HTTP front, a section of the proxy's configuration.

Keys are what an operator sets. Limits are constants that programs and tests change, and that the pages list.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger_base.config_keys.declared import key, limit


@dataclass(frozen=True, kw_only=True)
class HttpKeys:
    """Settings of the HTTP front. For every limit there is a test that reaches it."""

    http_port: int = key(
        0,
        "port of the [HTTP front](guides/http.md), on `host`, with `tls` and its files; 0 = none",
        consequence="without TLS, secrets of accounts are accepted only from this machine",
        bounds=(0, 65_535),
    )
    http_max_connections: int = key(
        1_024,
        "maximum number of connections to the HTTP front",
        consequence="a further one displaces an idle one of the host that has most of them, else it is closed",
        bounds=(1, 100_000),
    )
    http_max_requests: int = key(
        512,
        "maximum number of requests under way, without tails",
        consequence="further ones are answered 429 with `Retry-After`",
        bounds=(1, 100_000),
    )
    http_max_tails: int = key(
        128,
        "maximum number of tails",
        consequence="further ones are answered 429 with `Retry-After`",
        bounds=(0, 100_000),
    )
    http_max_body_bytes: int = key(
        6 << 20,
        "maximum size of a request's body. The default is enough for a message of 4 MiB in Base64",
        consequence="a larger one is answered 413",
        bounds=(1024, 64 << 20),
    )
    http_max_bodies_bytes: int = limit(
        64 << 20,
        "maximum memory for the bodies of all requests under way",
        consequence="requests that find no room are answered 429 with `Retry-After`",
        bounds=(1024, 1 << 40),
    )
    http_max_answers_bytes: int = limit(
        128 << 20,
        "maximum memory for answers with taken messages that clients have not read; a single one may be larger",
        consequence="messages that find no room go back to their group, and the answer is 429 with `Retry-After`",
        bounds=(1024, 1 << 40),
    )
    http_body_timeout_s: float = limit(
        20.0, "time limit for a request's body", consequence="a slower one is answered 408", bounds=(0.01, 3_600)
    )
    http_head_timeout_s: float = limit(
        10.0,
        "time limit for a request's head, from its first byte",
        consequence="the connection is closed",
        bounds=(0.01, 3_600),
    )
    http_idle_timeout_s: float = limit(
        75.0, "maximum idle time of a connection", consequence="it is closed", bounds=(0.01, 3_600)
    )
    http_reader_timeout_s: float = limit(
        20.0,
        "maximum time in which a client reads nothing of its answer",
        consequence="the connection is closed",
        bounds=(0.01, 3_600),
    )
    http_ping_interval_s: float = limit(
        15.0, "interval of the comments that keep a silent tail open", bounds=(0.01, 3_600)
    )
    http_drain_timeout_s: float = limit(
        15.0, "time limit for requests under way when the front stops", bounds=(0, 3_600)
    )
