"""No input of these tests may make the native part panic.

The twin in Python would answer instead, and the panic would stay unnoticed.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator

import pytest

from dledger_base import native_part


@pytest.fixture(autouse=True)
def no_panics() -> Iterator[None]:
    """Fail a test after a panic that it has not taken for itself."""
    if importlib.util.find_spec("dledger_native") is None:
        yield
        return
    native, panics = importlib.import_module("dledger_native"), list[tuple[str, str]]()
    native.on_panic(lambda function, said: panics.append((function, said)))
    yield
    native.on_panic(native_part._log_panic)
    assert not panics
