"""Names of the code of class filters, `module:function`, as the node's configuration gives them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from dledger_broker.filter_process.messages import FilteredMessage


def split_target(target: str) -> tuple[str, str]:
    """Return module and function of `module:function`. Raises ValueError."""
    module, separator, function = target.partition(":")
    if not separator or not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ValueError(f"{target!r} names no code, expected 'module:function'")
    return module, function


def load_target(target: str) -> Callable[[FilteredMessage], object]:
    """Return the function of a target.

    Raises ValueError for a malformed target, and the errors of importing its module. Raises AttributeError if the
    module lacks the name, and TypeError if the object cannot be called.
    """
    module, function = split_target(target)
    found = getattr(import_module(module), function)
    if not callable(found):
        raise TypeError(f"{target} is no function")
    loaded: Callable[[FilteredMessage], object] = found
    return loaded
