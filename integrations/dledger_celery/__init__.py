"""Kombu transport, by which Celery uses a cluster as its broker.

Set `broker_transport = "dledger_celery:Transport"`, or import this package where the application is made. The import
registers the URL schemes `dledger` and `dledgers` (with TLS). Start reading with `transport`; `channel` has what kombu
calls, `deliveries` the messages that are worked on, `broadcasts` what goes to everyone.
"""

from __future__ import annotations

from dledger_base.extras import install_command

try:
    from kombu.transport import TRANSPORT_ALIASES

    from .transport import Transport
except ModuleNotFoundError as error:
    if error.name is None or error.name.split(".")[0] not in {"kombu", "amqp", "vine"}:
        raise
    raise ModuleNotFoundError(
        f"dledger_celery needs kombu, which is not installed: {install_command('celery')}", name=error.name
    ) from None

TRANSPORT_ALIASES.update(dledger="dledger_celery:Transport", dledgers="dledger_celery:Transport")

__all__ = ["Transport"]
