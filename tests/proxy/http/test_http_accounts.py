"""An account's secret comes over TLS or from this machine, goes into signatures, and cannot be guessed at will."""

from __future__ import annotations

import ssl
from datetime import timedelta
from types import SimpleNamespace

import aiohttp
import pytest
from http_fronts import basic, serving
from hypothesis import given
from hypothesis import strategies as st

from dledger_base.issuing import Authority
from dledger_base.tls import TlsContext, TlsFiles
from dledger_client import Credentials, RefusedError
from dledger_proxy.http.accounts import BURST, MAX_PAIRS, PER_S, Guesses, account_of, caller_of, is_private
from dledger_proxy.http.backend import Caller
from dledger_proxy.http.problems import ProblemError
from dledger_remoting.errors import NoPermission

TOPICS = "/v1/topics"
WRONG = RefusedError(NoPermission("check signature failed. (User:bob)"))


class Transport:
    """A connection as its ends see it."""

    def __init__(self, peer: str, here: str, *, has_tls: bool = False) -> None:
        self._facts = {"peername": (peer, 1), "sockname": (here, 2), "sslcontext": object() if has_tls else None}

    def get_extra_info(self, name: str) -> object:
        return self._facts[name]


@pytest.mark.parametrize(
    ("peer", "here", "has_tls", "expected"),
    [
        ("127.0.0.1", "127.0.0.1", False, True),
        ("::1", "::1", False, True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", False, True),
        ("10.0.0.7", "10.0.0.1", False, False),
        ("127.0.0.1", "10.0.0.1", False, False),
        ("::ffff:10.0.0.7", "::1", False, False),
        ("fe80::1%eth0", "fe80::2%eth0", False, False),
        ("10.0.0.7", "10.0.0.1", True, True),
    ],
)
def test_a_secret_is_taken_over_tls_or_within_this_machine(peer, here, has_tls, expected):
    request = SimpleNamespace(transport=Transport(peer, here, has_tls=has_tls), headers=basic("bob", "s3cret"))
    assert is_private(request) is expected
    if expected:
        assert account_of(request) == Credentials("bob", "s3cret")
    else:
        with pytest.raises(ProblemError, match="give the account another secret, and use https") as caught:
            account_of(request)
        assert caught.value.kind.status == 403
    assert account_of(SimpleNamespace(transport=Transport(peer, here, has_tls=has_tls), headers={})) is None


@pytest.mark.parametrize(
    ("peer", "host"),
    [("127.0.0.1", "127.0.0.1"), ("::ffff:127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("fe80::1%eth0", "fe80::1")],
)
def test_a_caller_has_its_numeric_address(peer, host):
    request = SimpleNamespace(transport=Transport(peer, peer), headers={})
    assert caller_of(request) == Caller(None, host, 1)


@given(st.text(min_size=1, max_size=20).filter(lambda text: ":" not in text), st.text(min_size=1, max_size=20))
def test_names_and_secrets_of_any_characters_are_read(name, secret):
    request = SimpleNamespace(transport=Transport("::1", "::1"), headers=basic(name, secret))
    assert account_of(request) == Credentials(name, secret)


@given(st.text(max_size=40) | st.text(max_size=40).map(lambda text: f"Basic {text}"))
def test_other_headers_are_refused_with_what_to_send(header):
    request = SimpleNamespace(transport=Transport("::1", "::1"), headers={"Authorization": header})
    try:
        account = account_of(request)
    except ProblemError as error:
        account, refusal = None, error
        assert "send 'Authorization: Basic '" in str(refusal)
    assert account is None or header == basic(account.access_key, account.secret)["Authorization"]


async def test_requests_are_signed_for_the_account_that_they_name():
    async with serving() as started:
        await started.caller.get(TOPICS, headers=basic("bob", "a:b"))
        await started.caller.get(TOPICS)
        assert started.backend.accounts == [Credentials("bob", "a:b"), None]
        assert (await started.caller.get(TOPICS, headers=basic("", "x"))).status == 401
        assert (await started.caller.get(TOPICS, headers={"Authorization": "Bearer x"})).status == 401
        assert len(started.backend.accounts) == 2


async def test_guesses_of_a_secret_are_limited_for_each_caller_and_account():
    async with serving() as started:
        started.backend.failure = WRONG
        for _ in range(BURST):
            assert (await started.caller.get(TOPICS, headers=basic("bob", "guess"))).status == 401
        judged = len(started.backend.accounts)
        answer = await started.caller.get(TOPICS, headers=basic("bob", "s3cret"))
        assert (answer.status, len(started.backend.accounts)) == (429, judged), "no broker has judged it"
        assert "too many wrong secrets of 'bob' from 127.0.0.1" in answer.json["detail"]
        started.backend.failure = None
        assert (await started.caller.get(TOPICS, headers=basic("ann", "s3cret"))).status == 200
        assert (await started.caller.get(TOPICS)).status == 200


def test_the_limit_of_guesses_falls_with_time_and_counts_a_bounded_number_of_pairs():
    now = [0.0]
    guesses, bob = Guesses(lambda: now[0]), Caller(Credentials("bob", "x"), "10.0.0.7", 1)
    for port in range(BURST):
        guesses.note(bob._replace(port=port))
    with pytest.raises(ProblemError):
        guesses.require_patience(bob)
    guesses.require_patience(bob._replace(host="10.0.0.8"))
    now[0] += 1 / PER_S + 0.01
    guesses.require_patience(bob)
    for number in range(2 * MAX_PAIRS):
        guesses.note(bob._replace(host=str(number)))
    assert len(guesses._levels) == MAX_PAIRS


async def test_the_front_speaks_tls_and_refuses_clients_without_it(tmp_path):
    authority = Authority("a test", timedelta(days=1))
    authority.issue("front", ["127.0.0.1"]).write(tmp_path / "front.crt", tmp_path / "front.key")
    tls = TlsContext.for_server(TlsFiles(tmp_path / "front.crt", tmp_path / "front.key"))
    trusting = ssl.create_default_context(cadata=authority.certificate.decode())
    async with serving(tls=tls) as started:
        secured = started.caller.url.replace("http:", "https:")
        async with started.caller.session.get(secured + TOPICS, ssl=trusting, headers=basic("bob", "x")) as response:
            assert response.status == 200
        with pytest.raises(aiohttp.ClientError):
            await started.caller.session.get(started.caller.url + TOPICS)
        assert started.backend.accounts == [Credentials("bob", "x")]
    async with serving(tls=tls, takes_plain=True) as started:
        assert (await started.caller.get(TOPICS)).status == 200
