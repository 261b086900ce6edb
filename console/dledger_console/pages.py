"""Pages and changes as values: what each takes, which operation answers it, and how it is shown.

A `Look` changes nothing. It is a page at its path, JSON below `/api`, and a stream below `/live` if it moves. A
`Change` is a form: without consent it shows its effects and changes nothing. Both take one struct, whose fields come
from the path and the query or the body.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from dledger_admin.operations.access import Access
from dledger_client import Admin

from .cluster import Cluster

Row = TypeVar("Row")
Wanted = TypeVar("Wanted", bound=msgspec.Struct)
Answer = TypeVar("Answer", bound=msgspec.Struct)

ROWS_PER_PAGE: Final = 50
"""Maximum number of rows of a list on one page."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request: the cluster, and clients that sign for the person who asks."""

    cluster: Cluster
    access: Access
    admin: Admin


@dataclass(frozen=True, slots=True, kw_only=True)
class Look(Generic[Wanted, Answer]):
    """A page that shows something.

    path       path; names in braces are fields of `wanted`
    wanted     struct of the path's names and the query
    answer     operation; may raise `MissingError`, `OperationError` and `ClientError`
    template   file that shows the answer, as `answer`, beside `wanted`
    section    entry of the menu that it belongs to
    is_live    True if the block `live` of the template is worth sending again as it changes
    follow     context whose function answers each time for a stream of its own; None if `answer` does
    """

    path: str
    summary: str
    wanted: type[Wanted]
    answer: Callable[[Call, Wanted], Awaitable[Answer]]
    template: str
    section: str
    is_live: bool = False
    follow: Callable[[Call, Wanted], AbstractAsyncContextManager[Callable[[], Awaitable[Answer]]]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Generic[Wanted, Answer]):
    """A change of the cluster.

    effects    operation that tells what the change does, a text for each effect
    act        operation that changes; its answer is the JSON of the change
    told       function that says in one sentence what was done
    after      function that returns the path of the page to show afterwards
    """

    path: str
    summary: str
    wanted: type[Wanted]
    effects: Callable[[Call, Wanted], Awaitable[list[str]]]
    act: Callable[[Call, Wanted], Awaitable[Answer]]
    told: Callable[[Wanted, Answer], str]
    after: Callable[[Wanted], str]
    section: str


AnyLook = Look[Any, Any]
AnyChange = Change[Any, Any]


class Nothing(msgspec.Struct, frozen=True):
    """Parameters of a page that takes none."""


class Search(msgspec.Struct, frozen=True):
    """Parameters of a list: letters that a name must have, and the number of the page, from 1."""

    q: str = ""
    page: int = 1


class Rows(msgspec.Struct, frozen=True):
    """Place of a page in a list: its number, the number of pages, rows that match, and rows in all."""

    page: int
    pages: int
    matching: int
    total: int


def select(names: Sequence[str], search: Search) -> tuple[list[str], Rows]:
    """Return the names of one page that contain the searched letters, whatever their case, and the page's place.

    A number behind the last page means the last page.
    """
    return select_rows(names, search, str)


def select_rows(rows: Sequence[Row], search: Search, text_of: Callable[[Row], str]) -> tuple[list[Row], Rows]:
    """Return the rows of one page whose text contains the searched letters, and the page's place, as `select` does."""
    wanted = search.q.strip().casefold()
    matching = [row for row in rows if wanted in text_of(row).casefold()] if wanted else rows
    shown, place = cut(matching, search.page)
    return shown, msgspec.structs.replace(place, total=len(rows))


def cut(rows: Sequence[Row], page: int) -> tuple[list[Row], Rows]:
    """Return the rows of one page, and its place. A number behind the last page means the last page."""
    pages = max(1, -(-len(rows) // ROWS_PER_PAGE))
    page = min(max(1, page), pages)
    begin = (page - 1) * ROWS_PER_PAGE
    return list(rows[begin : begin + ROWS_PER_PAGE]), Rows(page, pages, len(rows), len(rows))
