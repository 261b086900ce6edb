"""Callbacks of tests at the events of a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dledger_broker.kernel.events import EVENTS, Events


def tell(events: Events, event: str, callback: Callable[..., Any]) -> None:
    """Call `callback` at an event, after the listeners that the node has by now."""
    assert event in EVENTS
    setattr(events, event, (*getattr(events, event), callback))


def tell_first(events: Events, event: str, callback: Callable[..., Any]) -> None:
    """Call `callback` at an event, before the listeners that the node has by now."""
    assert event in EVENTS
    setattr(events, event, (callback, *getattr(events, event)))
