"""HTTP server of the console: what each request goes through on its way to an operation, and back to a page.

1. The name in the `Host` header must be known (`guarding.py`).
2. The cookie tells who asks. Where the cluster answers nobody without an account, others get the login page.
3. A change must come from our page, with the token of this visitor.
4. The path, and the query or body, become the struct of the page or change (`binding.py`), and its operation answers.
5. Errors become problems (`problems.py`): a page for people, JSON below `/api`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Self, TypeAlias
from urllib.parse import quote

import msgspec
from aiohttp import web

from dledger_admin.operations.access import is_person_unknown
from dledger_admin.operations.messages import by_offset_id
from dledger_base.errors import ConfigError
from dledger_base.extras import package_version
from dledger_base.supervision import supervise
from dledger_client import ClientError, Credentials

from .binding import CONFIRM_FIELD, TOKEN_FIELD, bind_form, bind_json, bind_query
from .cluster import SHARED_SECONDS, Cluster
from .guarding import HEADERS, Names, is_same_origin
from .interface import PATH as DOCUMENT_PATH
from .interface import document
from .live import Streams
from .pages import AnyChange, AnyLook, Call
from .problems import MEDIA_TYPE, LoginNeededError, Problem, RefusedRequestError, problem_of
from .rendering import Pages, static_files
from .sessions import FREE_GUESSES, FREE_GUESSES_OF_ADDRESS, Patience, Sessions
from .views import CHANGES, LOOKS

MAX_BODY_BYTES: Final = 8 << 20
"""Maximum size of a form or a JSON body. A message has at most half of it."""

API: Final = "/api"
LIVE: Final = "/live"
TOKEN_HEADER: Final = "X-CSRF-Token"  # noqa: S105 -- the name of a header
_MAX_TOLD: Final = 1000
_SHUTDOWN_SECONDS: Final = 2.0
_JSON: Final = "application/json"
_HTML: Final = "text/html"
_VISITOR: Final = web.RequestKey("visitor", str)
"""Cookie's value of a visitor who came without one."""
_Next: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

_logger = logging.getLogger(__name__)
_quiet_logger = logging.getLogger(f"{__name__}.connections")
_quiet_logger.setLevel(logging.CRITICAL)
"""Logger of aiohttp's connections. All that it tells of is a client that is gone or speaks no HTTP."""


@dataclass(frozen=True, slots=True)
class Place:
    """Address and port on which the console listens, and further names of the console. Port 0 takes a free port."""

    host: str = "127.0.0.1"
    port: int = 0
    names: Sequence[str] = ()


class Console:
    """Serves the pages of a cluster between `start` and `stop`."""

    def __init__(self, cluster: Cluster, place: Place) -> None:
        self._cluster = cluster
        self._place = place
        self._names = Names(place.host, place.names)
        self._sessions = Sessions()
        self._patience_with_person = Patience(FREE_GUESSES)
        self._patience_with_address = Patience(FREE_GUESSES_OF_ADDRESS)
        self._told: OrderedDict[str, str] = OrderedDict()
        """Sentences about changes that were done, by visitor, until the next page shows them."""
        self._static = static_files()
        self._document = msgspec.json.encode(document(LOOKS, CHANGES, API, TOKEN_HEADER))
        self._pages = Pages({"version": package_version(), "name_servers": cluster.access.name_servers})
        self._streams = Streams()
        self._runner: web.AppRunner | None = None
        self._watching: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen. Raises `ConfigError` if the port cannot be listened on."""
        app = web.Application(middlewares=(self._answer,), client_max_size=MAX_BODY_BYTES)
        app.on_response_prepare.append(_add_headers)
        app.add_routes(self._routes())
        runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,
            shutdown_timeout=_SHUTDOWN_SECONDS,
            logger=_quiet_logger,
        )
        await runner.setup()
        host, port = self._place.host, self._place.port
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            await runner.cleanup()
            raise ConfigError(
                f"{host}:{port} cannot be listened on ({error.strerror}): stop what uses it, or give another --port"
            ) from error
        self._runner = runner
        self.port = runner.addresses[0][1]
        self._watching = asyncio.create_task(supervise(self._cluster.watch, "console-history", _ignore))

    async def stop(self) -> None:
        """End streams, let other requests finish for two seconds at most, and close the connections to the cluster."""
        self._streams.stop()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _routes(self) -> list[web.RouteDef]:
        routes = [
            web.get("/login", self._show_login),
            web.post("/login", self._log_in),
            web.post("/logout", self._log_out),
            web.get("/static/{name}", self._send_file),
            web.get("/bodies/{offset_id}", self._send_body),
            web.get(f"{API}{DOCUMENT_PATH}", self._send_document),
        ]
        for look in LOOKS:
            routes.append(web.get(look.path, partial(self._show, look)))
            routes.append(web.get(f"{API}{look.path.rstrip('/')}", partial(self._tell, look)))
            if look.is_live:
                routes.append(web.get(f"{LIVE}{look.path.rstrip('/')}", partial(self._stream, look)))
        for change in CHANGES:
            routes.append(web.post(change.path, partial(self._change_by_form, change)))
            routes.append(web.post(f"{API}{change.path}", partial(self._change_by_json, change)))
        return routes

    # Every request.

    @web.middleware
    async def _answer(self, request: web.Request, handler: _Next) -> web.StreamResponse:
        try:
            if not self._names.is_known(request):
                raise RefusedRequestError(
                    HTTPStatus.MISDIRECTED_REQUEST,
                    "The console does not answer under this name. Start it with --name for each name of a proxy.",
                )
            return await handler(request)
        except Exception as error:
            return await self._answer_error(request, error)

    async def _answer_error(self, request: web.Request, error: Exception) -> web.StreamResponse:
        if isinstance(error, web.HTTPException) and error.status < HTTPStatus.BAD_REQUEST:
            raise error
        if isinstance(error, ClientError) and is_person_unknown(error):
            await self._end_session(request)  # the account was deleted, or has another secret now
            error = LoginNeededError()
        is_for_people = not f"{request.path}/".startswith((f"{API}/", f"{LIVE}/"))
        if isinstance(error, LoginNeededError) and is_for_people and request.method == "GET":
            raise web.HTTPSeeOther(f"/login?next={quote(request.path_qs, safe='')}")
        problem = problem_of(error)
        if problem is None:
            _logger.error("event=console_failed path=%r", request.path, exc_info=error)
            problem = Problem(500, "Internal Server Error", "The console failed. Its log says more.")
        headers = {}
        if isinstance(error, RefusedRequestError) and error.retry_after_s:
            headers["Retry-After"] = str(error.retry_after_s)
        if not is_for_people:
            body = msgspec.json.encode(problem)
            return web.Response(body=body, status=problem.status, content_type=MEDIA_TYPE, headers=headers)
        return self._page(request, "error.html", {"problem": problem}, status=problem.status, headers=headers)

    async def _call(self, request: web.Request, *, is_use: bool = True) -> Call:
        """Return the cluster as the person who asks sees it. Raises `LoginNeededError`."""
        person = self._person(request, is_use=is_use)
        if person is None and not await self._cluster.answers_strangers():
            raise LoginNeededError
        return Call(self._cluster, self._cluster.access_of(person), await self._cluster.admin_of(person))

    def _person(self, request: web.Request, *, is_use: bool = True) -> Credentials | None:
        return self._sessions.find(self._visitor(request), is_use=is_use)

    def _visitor(self, request: web.Request) -> str:
        """Return the value of the visitor's cookie, which may be new."""
        visitor = request.cookies.get(self._cookie, "") or request.get(_VISITOR, "")
        if not visitor:
            visitor = request[_VISITOR] = self._sessions.new_id()
        return str(visitor)

    @property
    def _cookie(self) -> str:
        """Name of the cookie. It has the port, because cookies of two consoles on one host are in one jar."""
        return f"dledger_console_{self.port}"

    def _set_cookie(self, request: web.Request, response: web.Response, visitor: str) -> None:
        is_secure = self._names.is_behind_tls(request)
        response.set_cookie(self._cookie, visitor, httponly=True, samesite="Strict", secure=is_secure)

    async def _end_session(self, request: web.Request) -> None:
        visitor = self._visitor(request)
        person = self._sessions.find(visitor)
        self._sessions.close(visitor)
        if person is not None and not self._sessions.has(person):
            await self._cluster.forget(person)

    def _require_own_page(self, request: web.Request, token: str) -> None:
        """Raise `RefusedRequestError` unless a change comes from a page of ours that this visitor has."""
        if not is_same_origin(request) or not self._sessions.is_token(request.cookies.get(self._cookie, ""), token):
            raise RefusedRequestError(
                HTTPStatus.FORBIDDEN, "This did not come from a page of the console, or the page is old. Load it again."
            )

    def _page(
        self,
        request: web.Request,
        template: str,
        values: dict[str, Any],
        *,
        status: int = 200,
        headers: dict[str, str] | None = None,
    ) -> web.Response:
        """Return a page with everything that the frame around it shows."""
        visitor = self._visitor(request)
        person = self._sessions.find(visitor)
        frame = {
            "account": None if person is None else person.access_key,
            "token": self._sessions.token(visitor),
            "told": self._told.pop(visitor, ""),
            "section": "",
            "live": "",
            "path_qs": request.path_qs,
        }
        text = self._pages.page(template, {**frame, **values})
        response = web.Response(text=text, status=status, content_type=_HTML, headers=headers)
        if request.cookies.get(self._cookie) != visitor:
            self._set_cookie(request, response, visitor)
        return response

    # Looks.

    async def _show(self, look: AnyLook, request: web.Request) -> web.StreamResponse:
        wanted = bind_query(request, look.wanted)
        answer = await look.answer(await self._call(request), wanted)
        live = f"{LIVE}{request.path_qs if request.path != '/' else ''}" if look.is_live else ""
        values = {"answer": answer, "wanted": wanted, "section": look.section, "live": live}
        return self._page(request, look.template, values)

    async def _tell(self, look: AnyLook, request: web.Request) -> web.StreamResponse:
        wanted = bind_query(request, look.wanted)
        answer = await look.answer(await self._call(request), wanted)
        return web.Response(body=msgspec.json.encode(answer), content_type=_JSON)

    async def _send_document(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=self._document, content_type=_JSON)

    async def _stream(self, look: AnyLook, request: web.Request) -> web.StreamResponse:
        wanted = bind_query(request, look.wanted)
        call = await self._call(request)

        async def share() -> msgspec.Struct:
            # All viewers of a page with the same account cost as much as one.
            key = (look.path, wanted, call.access.credentials)
            now = await self._call(request, is_use=False)
            found: msgspec.Struct = await self._cluster.share(key, SHARED_SECONDS, partial(look.answer, now, wanted))
            return found

        async with look.follow(call, wanted) if look.follow is not None else nullcontext(share) as answer_again:

            async def part() -> str:
                await self._call(request, is_use=False)
                token = self._sessions.token(self._visitor(request))
                values = {"answer": await answer_again(), "wanted": wanted, "token": token}
                return self._pages.live_part(look.template, values)

            return await self._streams.serve(request, part)

    # Changes.

    async def _change_by_form(self, change: AnyChange, request: web.Request) -> web.StreamResponse:
        posted = await request.post()
        self._require_own_page(request, str(posted.get(TOKEN_FIELD, "")))
        call = await self._call(request)
        wanted, fields = await bind_form(request, change.wanted)
        back = change.after(wanted)
        if posted.get(CONFIRM_FIELD) != "yes":
            effects = await change.effects(call, wanted)
            values = {"change": change, "effects": effects, "fields": fields, "back": back, "section": change.section}
            return self._page(request, "confirm.html", values)
        answer = await change.act(call, wanted)
        self._told[self._visitor(request)] = change.told(wanted, answer)
        while len(self._told) > _MAX_TOLD:
            self._told.popitem(last=False)
        raise web.HTTPSeeOther(back)

    async def _change_by_json(self, change: AnyChange, request: web.Request) -> web.StreamResponse:
        self._require_own_page(request, request.headers.get(TOKEN_HEADER, ""))
        call = await self._call(request)
        wanted, dry_run = await bind_json(request, change.wanted)
        answer = {"effects": await change.effects(call, wanted)} if dry_run else await change.act(call, wanted)
        return web.Response(body=msgspec.json.encode(answer), content_type=_JSON)

    # People.

    async def _show_login(self, request: web.Request) -> web.StreamResponse:
        return self._page(request, "login.html", {"next": request.query.get("next", "/"), "wrong": ""})

    async def _log_in(self, request: web.Request) -> web.StreamResponse:
        posted = await request.post()
        self._require_own_page(request, str(posted.get(TOKEN_FIELD, "")))
        account, secret = str(posted.get("account", "")).strip(), str(posted.get("secret", ""))
        next_path = str(posted.get("next", "/"))
        address = request.remote or ""
        guesses = ((self._patience_with_person, f"{address} {account}"), (self._patience_with_address, address))
        wait_s = max(patience.seconds_left(name) for patience, name in guesses)
        if wait_s > 0:
            raise RefusedRequestError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"Too many wrong logins. Try again in {math.ceil(wait_s)} s.",
                retry_after_s=math.ceil(wait_s),
            )
        for patience, name in guesses:
            patience.note(name)  # at once, so that attempts at the same time count, too
        credentials = Credentials(account, secret) if account and secret else None
        try:
            is_known = credentials is not None and await self._cluster.knows(credentials)
        except ClientError:
            _forgive(guesses)  # nobody said that it was wrong
            raise
        if credentials is None or not is_known:
            values = {"next": next_path, "wrong": "The cluster knows no such account with this secret."}
            return self._page(request, "login.html", values, status=HTTPStatus.UNAUTHORIZED)
        _forgive(guesses)
        response = web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": _own_path(next_path)})
        self._set_cookie(request, response, self._sessions.open(credentials))
        return response

    async def _log_out(self, request: web.Request) -> web.StreamResponse:
        posted = await request.post()
        self._require_own_page(request, str(posted.get(TOKEN_FIELD, "")))
        await self._end_session(request)
        response = web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": "/login"})
        response.del_cookie(self._cookie)
        return response

    # Files.

    async def _send_file(self, request: web.Request) -> web.StreamResponse:
        found = self._static.get(request.match_info["name"])
        if found is None:
            raise RefusedRequestError(HTTPStatus.NOT_FOUND, "There is no such file.")
        media_type, content = found
        return web.Response(body=content, content_type=media_type, charset="utf-8")

    async def _send_body(self, request: web.Request) -> web.StreamResponse:
        """Send the body of a message as a file, which no browser takes for a page."""
        call = await self._call(request)
        message = await by_offset_id(call.admin, request.match_info["offset_id"])
        return web.Response(
            body=message.body,
            content_type="application/octet-stream",
            headers={"Content-Disposition": f'attachment; filename="{message.offset_message_id}.bin"'},
        )


def _forgive(guesses: Iterable[tuple[Patience, str]]) -> None:
    for patience, name in guesses:
        patience.forgive(name)


def _ignore() -> None:
    """Count no restart of the watch: the log has it."""


def _own_path(path: str) -> str:
    """Return a path of the console, never the address of another host."""
    is_own = path.startswith("/") and not path.startswith(("//", "/\\")) and "\\" not in path
    return path if is_own and path.isprintable() else "/"


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
