"""Request for lines of this node's audit log (20032). A thread reads the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial

from dledger.environment import COLD, Environment, called_back
from dledger_base.audit_log import newest_lines
from dledger_broker.config import BrokerConfig
from dledger_broker.kernel import rights
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import NO_EFFECT, Needs, Route
from dledger_remoting.audit import MAX_LINES, AuditHeader, AuditLine, AuditLines
from dledger_remoting.bodies import encode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import InvalidParameter, ServerError
from dledger_remoting.headers import decode_ext


class AuditRequests(Part):
    """Handler of the request. It needs the right to read everything, which looking at a cluster does not include."""

    def __init__(self, config: BrokerConfig, env: Environment, requests: Requests) -> None:
        self._node_id = config.node_id
        self._folder = config.data_dir / "log"
        self._env = env
        self._requests = requests

    @property
    def routes(self) -> Mapping[int, Route]:
        return {
            RequestCode.READ_AUDIT: Route(
                self.tell, Needs.NOTHING, NO_EFFECT, forwarded=False, rights=(rights.cluster(Action.LOG),)
            ),
        }

    def tell(self, request: Request) -> None:
        """Answer with the newest lines of the audit log (20032). Raises `InvalidParameter` for a wrong number."""
        header = decode_ext(AuditHeader, request.ext)
        if not 1 <= header.max_lines <= MAX_LINES:
            raise InvalidParameter(f"maxLines {header.max_lines} is outside 1..{MAX_LINES}")
        self._requests.spawn(request, self._tell(request, header))

    async def _tell(self, request: Request, header: AuditHeader) -> None:
        read = partial(newest_lines, self._folder, header.max_lines, header.word)
        try:
            found = await called_back(partial(self._env.run_blocking, COLD, read))
        except OSError as error:
            why = f"the audit log in {self._folder} cannot be read: {error}: look at the disk of {self._node_id}"
            self._requests.fail(request, ServerError(why))
            return
        self._requests.respond(request, encode_body(AuditLines(self._node_id, [_line(fields) for fields in found])))


def _line(fields: Mapping[str, object]) -> AuditLine:
    untold = fields.get("untold", 0)
    return AuditLine(
        _text(fields.get("time")),
        _text(fields.get("who")),
        _text(fields.get("from")),
        _text(fields.get("what")),
        _text(fields.get("outcome")),
        _json(fields.get("before")),
        _json(fields.get("after")),
        untold if isinstance(untold, int) else 0,
    )


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _json(value: object) -> str:
    return "" if value is None else json.dumps(value)
