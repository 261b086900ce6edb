"""Proof of an HTTP request: the sender knows the group's secret. It counts once, and for this request only."""

from __future__ import annotations

import pytest

from dledger.net.proof import NONCE_LIFE_S, Gatekeeper, ProofError, prove
from dledger_base.secret import GroupSecrets

SECRET = b"s" * 32
REQUEST = ("PUT", "/leader/n1")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate(clock: Clock) -> Gatekeeper:
    return Gatekeeper(SECRET, clock)


def proven(gate: Gatekeeper, secret: bytes = SECRET) -> str:
    return prove(secret, *REQUEST, gate.challenge())


def test_a_proven_request_passes_once(gate: Gatekeeper) -> None:
    proof = proven(gate)
    gate.check(*REQUEST, proof)
    with pytest.raises(ProofError, match="used before"):
        gate.check(*REQUEST, proof)
    gate.check(*REQUEST, proven(gate))


def test_each_of_two_secrets_proves_a_request(clock: Clock) -> None:
    gate = Gatekeeper(GroupSecrets(SECRET, b"o" * 32), clock)
    for secret in (SECRET, b"o" * 32):
        gate.check(*REQUEST, proven(gate, secret))
    with pytest.raises(ProofError, match="not this group's"):
        gate.check(*REQUEST, proven(gate, b"n" * 32))


def test_a_proof_is_refused_for_another_request_and_at_another_node(gate: Gatekeeper) -> None:
    proof = proven(gate)
    for method, path in (("PUT", "/leader/n2"), ("DELETE", "/leader/n1"), ("DELETE", "/members/n1")):
        with pytest.raises(ProofError, match="the proof is for another request"):
            gate.check(method, path, proof)
    with pytest.raises(ProofError, match="made by another node"):
        Gatekeeper(SECRET, Clock()).check(*REQUEST, proof)
    gate.check(*REQUEST, proof)


def test_a_proof_expires_and_its_nonce_is_forgotten_after_its_lifetime(clock: Clock, gate: Gatekeeper) -> None:
    first, second = proven(gate), proven(gate)
    clock.now += NONCE_LIFE_S - 0.1
    for _ in range(99):
        gate.check(*REQUEST, proven(gate))
    gate.check(*REQUEST, first)
    assert len(gate._used_nonces) == 100
    clock.now += 0.1
    with pytest.raises(ProofError, match="older than 30 s"):
        gate.check(*REQUEST, second)
    clock.now += NONCE_LIFE_S
    gate.check(*REQUEST, proven(gate))
    assert len(gate._used_nonces) == 1


FORGED = {
    "nothing": "",
    "another scheme": "Basic YTpi",
    "another secret": None,
    "a cut nonce": 'DLedger nonce="00", mac="' + "0" * 64 + '"',
    "a nonce of one's own": 'DLedger nonce="' + "0" * 80 + '", mac="' + "0" * 64 + '"',
    "no letters": 'DLedger nonce="' + "\u00e9" * 80 + '", mac="' + "0" * 64 + '"',
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_forged_proof_is_refused(gate: Gatekeeper, forged: str | None) -> None:
    with pytest.raises(ProofError):
        gate.check(*REQUEST, proven(gate, b"t" * 32) if forged is None else forged)


def test_a_challenge_of_another_kind_is_not_answered() -> None:
    """Another server could choose words whose proof is valid for another purpose."""
    with pytest.raises(ProofError, match="not a challenge"):
        prove(SECRET, *REQUEST, 'Digest nonce="00"')


def test_the_format_does_not_change() -> None:
    """Other programs make proofs too, so the format must stay."""
    assert prove(b"0123456789abcdef", "PUT", "/leader/n1", 'DLedger nonce="00ff"') == (
        'DLedger nonce="00ff", mac="bf6dad892e55962366a9483f61ebcf9f35b4367acdcc16ad440b5a6ebc8a5208"'
    )
