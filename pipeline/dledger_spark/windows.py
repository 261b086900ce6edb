"""Windows of brokers for idempotent sends, and the time limit of a write that follows from them."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from typing import Final

from .errors import SourceError
from .options import WriteOptions, read_options
from .plans import Cluster

DEFAULT_WINDOW_S: Final = 120.0
"""Default of the brokers' `idempotent_window_ms`, in seconds, used if no broker group tells its own."""
ASK_TIMEOUT: Final = "5s"
GET_BROKER_CONFIG: Final = 26
_KEY: Final = "idempotent_window_ms="

_logger = logging.getLogger(__name__)


def within_window(options: WriteOptions, *, has_identity: bool) -> WriteOptions:
    """Return the options with a `deliveryTimeout`: a quarter of the brokers' window unless the user has set one.

    A message that is tried for longer than the window may be stored twice, because the broker has forgotten its first
    attempt. So where rows have an identity a longer time is cut to half of the window, which is logged.
    """
    window_s = window_of(options.namesrv)
    timeout_s = options.delivery_timeout_s
    if window_s <= 0:
        if has_identity:
            _logger.warning("event=nothing_is_remembered key=idempotent_window_ms consequence='at least once'")
        window_s = DEFAULT_WINDOW_S
        has_identity = False
    if timeout_s is None:
        return replace(options, delivery_timeout_s=window_s / 4)
    if has_identity and timeout_s > window_s / 2:
        _logger.warning(
            "event=delivery_timeout_cut from_s=%g to_s=%g reason='half of the %g s for which a repetition is known'",
            timeout_s,
            window_s / 2,
            window_s,
        )
        return replace(options, delivery_timeout_s=window_s / 2)
    return options


def window_of(namesrv: tuple[str, ...]) -> float:
    """Return the shortest window of the broker groups in seconds, or the default if no group reports a window."""
    options = read_options(
        {"namesrv": ";".join(namesrv), "subscribePattern": ".*", "readTimeout": ASK_TIMEOUT}, "batch"
    )
    windows_s: list[float] = []
    with closing(Cluster(options)) as cluster:
        try:
            for group in cluster.groups():
                text = cluster.ask(group, GET_BROKER_CONFIG, [{}])[0].body.decode(errors="replace")
                windows_s += [int(line[len(_KEY) :]) / 1000 for line in text.splitlines() if line.startswith(_KEY)]
        except (SourceError, ValueError) as error:
            _logger.info("event=window_not_known assumed_s=%g error=%r", DEFAULT_WINDOW_S, error)
    return min(windows_s, default=DEFAULT_WINDOW_S)
