"""Proxies for RocketMQ 5's clients that are killed, stopped, or cut off from their clients."""

from __future__ import annotations

from typing import Final

from ..target import FaultClass
from ..toxiproxy.mesh import CLIENTS
from .base import FaultKind, Surroundings
from .network import STYLES, Cut, between
from .process import Kill, Pause

_NEEDS: Final[frozenset[FaultClass]] = frozenset({"proxies"})


def _draw_cut(s: Surroundings) -> Cut:
    proxy = s.a_proxy()
    return Cut(between((CLIENTS,), (proxy,)), s.rng.choice(STYLES), (proxy,))


KINDS: Final = (
    FaultKind("kill-proxy", "process", "SIGKILL a proxy", lambda s: Kill((s.a_proxy(),)), (0.5, 8.0), needs=_NEEDS),
    FaultKind("stop-proxy", "process", "SIGSTOP a proxy", lambda s: Pause((s.a_proxy(),)), (1.0, 15.0), needs=_NEEDS),
    FaultKind("partition-proxy", "network", "a proxy cut off from its clients", _draw_cut, (1.0, 15.0), needs=_NEEDS),
)
