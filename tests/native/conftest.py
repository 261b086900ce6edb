"""No input of these tests may make the native part panic: its twin would answer, and nobody would see it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator

import pytest

from dledger import native_part


@pytest.fixture(autouse=True)
def no_panics() -> Iterator[None]:
    """A panic that the test has not taken for itself fails it."""
    if importlib.util.find_spec("dledger_native") is None:
        yield
        return
    native, panics = importlib.import_module("dledger_native"), list[tuple[str, str]]()
    native.on_panic(lambda function, said: panics.append((function, said)))
    yield
    native.on_panic(native_part._tell_of_panic)
    assert not panics
