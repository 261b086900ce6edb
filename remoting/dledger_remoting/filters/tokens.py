"""Tokens of an SQL92 expression, each with its place in the text.

| token | is |
|---|---|
| keyword | `NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH`, in any case |
| name | a letter, `_` or `$`, then these and digits: of a property, case matters |
| integer | `0`, or digits that do not begin with 0, then perhaps `L` |
| float | `5.`, `.5`, `5.5`, each perhaps with an exponent `e-3`; `5e3` |
| string | between `'`, a `''` within is one `'` |
| sign | `( ) , = <> < <= > >= + -` |

Only ASCII letters and digits count. Blanks and comments (`-- to the end of the line`, `/* */`) are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple, Never

from dledger_remoting.errors import SubscriptionParseFailed

KEYWORDS: Final = frozenset(
    "NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH".split()  # noqa: SIM905 -- one line of words
)

_TOKEN: Final = re.compile(
    r"""(?P<blank>[ \t\n\r\f]+ | --[^\n\r]* | /\*.*?\*/)
      | (?P<float>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+)
      | (?P<integer>(?:0 | [1-9][0-9]*[lL]?))
      | (?P<string>'(?:''|[^'])*')
      | (?P<word>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<sign><>|<=|>=|[()=<>,+-])""",
    re.VERBOSE | re.DOTALL,
)
_MAX_SHOWN_CHARS: Final = 40


class TokenKind(Enum):
    """Kind of a token."""

    KEYWORD = "keyword"
    NAME = "name"
    INTEGER = "integer"
    FLOAT = "float"
    STRING = "string"
    SIGN = "sign"
    END = "end"


class Token(NamedTuple):
    """A token at `place` of the expression. `text` is a keyword in upper case, or the value of a string literal."""

    kind: TokenKind
    text: str
    place: int


def fail(expression: str, place: int, what: str) -> Never:
    """Raise `SubscriptionParseFailed` that names line and column of a place, both from 1."""
    raise SubscriptionParseFailed(placed(expression, place, what))


def placed(expression: str, place: int, what: str) -> str:
    """Return a text about a place of an expression, with its line and column, both from 1."""
    line = expression.count("\n", 0, place) + 1
    column = place - expression.rfind("\n", 0, place)
    return f"SQL92 expression, line {line}, column {column}: {what}"


def tokens(expression: str) -> Iterator[Token]:
    """Yield all tokens, the last of kind `END`.

    Raises `SubscriptionParseFailed` at a character that begins no token.
    """
    place = 0
    while place < len(expression):
        match = _TOKEN.match(expression, place)
        if match is None or match.lastgroup is None:
            _fail_at(expression, place)
        group, text = match.lastgroup, match.group()
        if group == "string":
            yield Token(TokenKind.STRING, text[1:-1].replace("''", "'"), place)
        elif group == "word":
            keyword = text.upper()
            yield (
                Token(TokenKind.KEYWORD, keyword, place) if keyword in KEYWORDS else Token(TokenKind.NAME, text, place)
            )
        elif group != "blank":
            yield Token(TokenKind(group), text, place)
        place = match.end()
    yield Token(TokenKind.END, "", place)


def _fail_at(expression: str, place: int) -> Never:
    if expression[place] == "'":
        fail(expression, place, "a string that does not end, expected another ' behind it")
    if expression.startswith("/*", place):
        fail(expression, place, "a comment that does not end, expected */ behind it")
    fail(expression, place, f"unexpected {expression[place]!r}")


def shown(token: Token) -> str:
    """Return a token as an error shows it."""
    if token.kind is TokenKind.END:
        return "the end"
    text = token.text if len(token.text) <= _MAX_SHOWN_CHARS else token.text[:_MAX_SHOWN_CHARS] + "..."
    return f"string {text!r}" if token.kind is TokenKind.STRING else repr(text)
