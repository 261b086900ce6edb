"""Audit log for operators: each node tells the newest lines of its own file, so that nobody needs its disk."""

from __future__ import annotations

from typing import Final

from dledger_broker.features.audit.requests import AuditRequests
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> AuditRequests:
    return AuditRequests(context.config, context.env, context.requests)


FEATURE: Final = Feature(name="audit", build=_build)
