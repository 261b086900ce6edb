"""No input of these tests may make the native part panic: its twin would answer, and nobody would see it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_panics() -> Iterator[None]:
    """A panic that the test has not taken for itself fails it."""
    if importlib.util.find_spec("dledger_native") is None:
        yield
        return
    panics: list[tuple[str, str]] = []
    importlib.import_module("dledger_native").on_panic(lambda function, said: panics.append((function, said)))
    yield
    assert not panics
