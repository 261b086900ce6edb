"""Console on a thread of its own, and a visitor who reads its pages and sends its forms as a browser does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser

import httpx

from dledger_admin.operations.access import Access
from dledger_console.cluster import Cluster
from dledger_console.server import Console, Place

SECONDS = 30.0


@contextmanager
def served(access: Access, *names: str) -> Iterator[str]:
    """Serve the console of a cluster on a free port of loopback, and return its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(SECONDS)

    async def make() -> Console:
        console = Console(Cluster(access), Place(names=names))
        await console.start()
        return console

    console = run(make())
    try:
        yield f"http://127.0.0.1:{console.port}"
    finally:
        run(console.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(SECONDS)
        loop.close()


class Form:
    """A form of a page: its path, its fields with their values, and the words on its buttons."""

    def __init__(self, action: str, method: str) -> None:
        self.action = action
        self.method = method
        self.fields: dict[str, str | list[str]] = {}
        self.buttons: list[str] = []


class Page(HTMLParser):
    """A page: its forms, its links, its text, and whatever a strict content security policy would refuse."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__()
        self.response = response
        self.forms: list[Form] = []
        self.links: list[str] = []
        self.refused: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self._select = self._textarea = ""
        self.feed(response.text)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attrs):
        given = {name: value or "" for name, value in attrs}
        self._open.append(tag)
        self.refused += [f"{tag} {name}" for name in given if name.startswith("on") or name == "style"]
        self.refused += [value for name, value in attrs if name in ("src", "href", "action") and "//" in (value or "")]
        if (tag == "script" and "src" not in given) or tag == "style":
            self.refused.append(tag)
        form = self.forms[-1] if self.forms else Form("", "")
        match tag:
            case "a":
                self.links.append(given.get("href", ""))
            case "form":
                self.forms.append(Form(given.get("action", ""), given.get("method", "get")))
            case "input" if given.get("type") != "checkbox" and "name" in given:
                form.fields[given["name"]] = given.get("value", "")
            case "select":
                self._select = given["name"]
                form.fields[self._select] = ""
            case "option" if "selected" in given:
                form.fields[self._select] = given.get("value", "")
            case "textarea":
                self._textarea = given["name"]
                form.fields[self._textarea] = ""

    def handle_endtag(self, tag):
        if tag in self._open:
            while self._open.pop() != tag:
                pass
        if tag == "textarea":
            self._textarea = ""

    def handle_data(self, data):
        self.text += data
        if self._textarea:
            earlier = self.forms[-1].fields[self._textarea]
            self.forms[-1].fields[self._textarea] = f"{earlier}{data}" if earlier else data.removeprefix("\n")
        elif self._open[-1:] == ["button"] and self.forms:
            self.forms[-1].buttons.append(data.strip())


class Visitor:
    """A person with a browser that keeps cookies and runs no script."""

    def __init__(self, address: str) -> None:
        self.http = httpx.Client(base_url=address, timeout=SECONDS, follow_redirects=True)
        self.page: Page

    def go(self, path: str) -> Page:
        """Load a page."""
        self.page = Page(self.http.get(path))
        return self.page

    def press(self, button: str, **fields: str | list[str]) -> Page:
        """Fill in the form with this button, and send it."""
        form = next(form for form in self.page.forms if button in form.buttons)
        response = self.http.request(
            form.method, form.action or self.page.response.url.path, data={**form.fields, **fields}
        )
        self.page = Page(response)
        return self.page

    def token(self) -> str:
        """Return the token of this visitor's forms."""
        self.go("/login")
        return str(self.page.forms[0].fields["token"])

    def read(self, path: str):
        """Return the JSON at a path below `/api`."""
        response = self.http.get(f"/api{path}")
        assert response.status_code == 200, response.text
        return response.json()
