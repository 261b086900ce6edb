"""Checks of a restarted stream: whether the cluster is the one of the checkpoint, and how old a repeated batch is."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from dledger_base.group_identity import GroupIdentity

from .errors import OtherGroupError
from .windows import window_of

_logger = logging.getLogger(__name__)


def check_identities(found: Mapping[str, str], expected: Mapping[str, str], reported: set[str]) -> dict[str, str]:
    """Compare the identities of broker groups with those of a checkpoint; return the identities that the next offsets
    get.

    A group without an identity, or without one in the checkpoint, passes. So does a group that was rescued since: a
    warning is logged, unless its identity is in `reported`. Raises `OtherGroupError` for a second founding under the
    same name, and for an incarnation before a rescue.
    """
    identities = {**expected, **{group: identity for group, identity in found.items() if identity}}
    for group, identity in identities.items():
        recorded = expected.get(group, identity)
        if identity == recorded:
            continue
        if not GroupIdentity.parse(recorded).precedes(GroupIdentity.parse(identity)):
            raise OtherGroupError(group, identity, recorded)
        if identity in reported:
            continue
        reported.add(identity)
        _logger.warning(
            "event=group_rescued group=%s identity=%s before=%s consequence='what the rescue lost is not read'",
            group,
            identity,
            recorded,
        )
    return identities


def tell_late_repetition(planned_ms: int | None, namesrv: tuple[str, ...]) -> None:
    """Log that a micro-batch runs again so late that a sink may not remember its rows any more."""
    if planned_ms is None:
        return
    age_s = time.time() - planned_ms / 1000
    if age_s > (window_s := window_of(namesrv)):
        _logger.warning(
            "event=batch_possibly_repeated planned_s_ago=%.0f window_s=%g consequence='rows of this micro-batch that "
            "were written to a topic before the restart are written again'",
            age_s,
            window_s,
        )
