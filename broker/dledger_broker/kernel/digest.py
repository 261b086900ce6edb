"""Order-independent 64-bit digests: the digest of a set is the sum of its items' hashes modulo 2^64.

To add, change or remove an item costs one or two hashes, whatever the size of the set. Equal sets have equal digests in
every process: nothing here depends on Python's hash seed.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

MASK = (1 << 64) - 1
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def item_hash(*parts: object) -> int:
    """Return the 64-bit hash of an item that MessagePack can encode."""
    return int.from_bytes(blake2b(_encode(parts), digest_size=8).digest(), "big")


def mix(key: int, value: int) -> int:
    """Return a 64-bit hash of two integers with splitmix64's finaliser, which is much cheaper than `item_hash`."""
    word = (key + (value + 1) * 0x9E3779B97F4A7C15) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)
