"""A request over HTTP proves that its sender knows the group's secret, once, and for nothing else."""

from __future__ import annotations

import pytest

from dledger.net.proof import NONCE_LIFE_S, Gatekeeper, ProofError, prove

SECRET = b"s" * 32
REQUEST = ("PUT", "/leader/n1")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_proven_request_passes_once() -> None:
    gate = Gatekeeper(SECRET, Clock())
    proof = prove(SECRET, *REQUEST, gate.challenge())
    gate.check(*REQUEST, proof)
    with pytest.raises(ProofError, match="used before"):
        gate.check(*REQUEST, proof)
    gate.check(*REQUEST, prove(SECRET, *REQUEST, gate.challenge()))


def test_an_overheard_proof_is_worth_nothing_for_another_request_or_at_another_node() -> None:
    gate, other = Gatekeeper(SECRET, Clock()), Gatekeeper(SECRET, Clock())
    proof = prove(SECRET, *REQUEST, gate.challenge())
    for method, path in (("PUT", "/leader/n2"), ("DELETE", "/leader/n1"), ("DELETE", "/members/n1")):
        with pytest.raises(ProofError, match="another one than was proven"):
            gate.check(method, path, proof)
    with pytest.raises(ProofError, match="not of this node"):
        other.check(*REQUEST, proof)
    gate.check(*REQUEST, proof)


def test_a_proof_ages() -> None:
    clock = Clock()
    gate = Gatekeeper(SECRET, clock)
    first, second = (prove(SECRET, *REQUEST, gate.challenge()) for _ in range(2))
    clock.now += NONCE_LIFE_S - 0.1
    gate.check(*REQUEST, first)
    clock.now += 0.1
    with pytest.raises(ProofError, match="older than 30 s"):
        gate.check(*REQUEST, second)


def test_a_used_nonce_is_kept_for_as_long_as_it_lives_and_no_longer() -> None:
    clock = Clock()
    gate = Gatekeeper(SECRET, clock)
    for _ in range(100):
        gate.check(*REQUEST, prove(SECRET, *REQUEST, gate.challenge()))
    assert len(gate._used) == 100
    clock.now += NONCE_LIFE_S
    gate.check(*REQUEST, prove(SECRET, *REQUEST, gate.challenge()))
    assert len(gate._used) == 1


FORGED = {
    "nothing": "",
    "another scheme": "Basic YTpi",
    "another secret": None,
    "a cut nonce": 'DLedger nonce="00", mac="' + "0" * 64 + '"',
    "a nonce of one's own": 'DLedger nonce="' + "0" * 80 + '", mac="' + "0" * 64 + '"',
    "no letters": 'DLedger nonce="' + "\u00e9" * 80 + '", mac="' + "0" * 64 + '"',
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_what_is_no_proof_does_not_pass(forged: str | None) -> None:
    gate = Gatekeeper(SECRET, Clock())
    proof = prove(b"t" * 32, *REQUEST, gate.challenge()) if forged is None else forged
    with pytest.raises(ProofError):
        gate.check(*REQUEST, proof)


def test_a_challenge_of_another_kind_is_not_answered() -> None:
    """A proof over words that another server chose could be one for something else."""
    with pytest.raises(ProofError, match="no challenge"):
        prove(SECRET, *REQUEST, 'Digest nonce="00"')


def test_the_format_does_not_change() -> None:
    """Other programs make proofs too."""
    assert prove(b"0123456789abcdef", "PUT", "/leader/n1", 'DLedger nonce="00ff"') == (
        'DLedger nonce="00ff", mac="bf6dad892e55962366a9483f61ebcf9f35b4367acdcc16ad440b5a6ebc8a5208"'
    )
