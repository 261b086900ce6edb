"""Reader of RocketMQ 4's `plain_acl.yml`: the accounts in it, and the addresses that need none.

Format: the part of YAML that such files use: maps and lists by indentation, texts with or without quotes, `[]` for an
empty list, comments. What is anything else, or says what is not known, is refused by its line; nothing of the file is
repeated.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple, TypeAlias

from dledger_remoting.plain_accounts import PlainAccountHeader

Node: TypeAlias = "str | list[Node] | dict[str, Node]"

_WHITE_LIST: Final = "globalWhiteRemoteAddresses"
_ACCOUNTS: Final = "accounts"
_NOT_READ: Final = frozenset({"dataVersion"})
_TEXTS: Final = (*("accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm"),)
_LISTS: Final = ("topicPerms", "groupPerms")


class PlainAclError(ValueError):
    """A file is no `plain_acl.yml`, or says what cannot be imported."""


class PlainAcl(NamedTuple):
    """What a file has; no `white_list`: it says nothing of it."""

    accounts: list[PlainAccountHeader]
    white_list: list[str] | None


class _Line(NamedTuple):
    number: int
    indent: int
    text: str


def read_plain_acl(text: str) -> PlainAcl:
    """Raises `PlainAclError`."""
    lines = _lines(text)
    root, rest = _block(lines, 0) if lines else ({}, 0)
    if rest != len(lines) or not isinstance(root, dict):
        raise PlainAclError("expected `accounts:` and `globalWhiteRemoteAddresses:` at the beginning of lines")
    unknown = root.keys() - {_WHITE_LIST, _ACCOUNTS} - _NOT_READ
    if unknown:
        raise PlainAclError(f"there are keys beside {_ACCOUNTS} and {_WHITE_LIST}")
    accounts = root.get(_ACCOUNTS, [])
    if not isinstance(accounts, list):
        raise PlainAclError(f"{_ACCOUNTS} is no list")
    found = [_account(number, one) for number, one in enumerate(accounts, 1)]
    twice = [name for name, count in Counter(one.access_key for one in found).items() if count > 1]
    if twice:
        raise PlainAclError(f"there is more than one account {twice[0]}: RocketMQ takes the first, leave one")
    return PlainAcl(found, _texts(_WHITE_LIST, root[_WHITE_LIST]) if _WHITE_LIST in root else None)


def _account(number: int, node: Node) -> PlainAccountHeader:
    what = f"account {number}"
    if not isinstance(node, dict):
        raise PlainAclError(f"{what} is no map")
    if node.keys() - {*_TEXTS, *_LISTS}:
        raise PlainAclError(f"{what} has keys beside {', '.join((*_TEXTS, *_LISTS))}")
    texts = {key: _text(f"{key} of {what}", node[key]) for key in _TEXTS if key in node}
    for key in ("accessKey", "secretKey"):
        if not texts.get(key):
            raise PlainAclError(f"{what} has no {key}")
    admin = texts.get("admin", "false").lower()
    if admin not in ("true", "false", ""):
        raise PlainAclError(f"admin of {what} is neither true nor false")
    perms = {key: _texts(f"{key} of {what}", node.get(key, [])) for key in _LISTS}
    return PlainAccountHeader(
        texts["accessKey"],
        texts["secretKey"],
        texts.get("whiteRemoteAddress", ""),
        admin == "true",
        texts.get("defaultTopicPerm") or "DENY",
        texts.get("defaultGroupPerm") or "DENY",
        ",".join(perms["topicPerms"]),
        ",".join(perms["groupPerms"]),
    )


def _text(what: str, node: Node) -> str:
    if not isinstance(node, str):
        raise PlainAclError(f"{what} is no text")
    return node


def _texts(what: str, node: Node) -> list[str]:
    if node == "":
        return []
    if not isinstance(node, list):
        raise PlainAclError(f"{what} is no list")
    return [_text(what, one) for one in node]


# -------------------------------------------------------------------- YAML


def _lines(text: str) -> list[_Line]:
    found: list[_Line] = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = _without_comment(line).rstrip()
        if not bare.strip() or bare == "---":
            continue
        indent = len(bare) - len(bare.lstrip(" "))
        if bare[indent] == "\t":
            raise PlainAclError(f"line {number} is indented by a tab")
        found.append(_Line(number, indent, bare[indent:]))
    return found


def _without_comment(line: str) -> str:
    quote = ""
    for at, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"" and (at == 0 or line[at - 1] in " :-"):
            quote = letter
        elif letter == "#" and (at == 0 or line[at - 1] in " \t"):
            return line[:at]
    return line


def _block(lines: list[_Line], at: int) -> tuple[Node, int]:
    """The map or list that begins in a line, and where it ends."""
    first = lines[at]
    return _list(lines, at, first.indent) if _is_item(first) else _map(lines, at, first.indent)


def _is_item(line: _Line) -> bool:
    return line.text == "-" or line.text.startswith("- ")


def _list(lines: list[_Line], at: int, indent: int) -> tuple[Node, int]:
    found: list[Node] = []
    while at < len(lines) and lines[at].indent == indent and _is_item(lines[at]):
        line = lines[at]
        inner = line.text[1:].lstrip(" ")
        if _key_of(inner) is None:
            found.append(_scalar(line, inner))
            at += 1
        else:
            # The map goes on in the lines below, as deep as its first key.
            lines[at] = _Line(line.number, indent + len(line.text) - len(inner), inner)
            node, at = _map(lines, at, lines[at].indent)
            found.append(node)
    return found, at


def _map(lines: list[_Line], at: int, indent: int) -> tuple[Node, int]:
    found: dict[str, Node] = {}
    while at < len(lines) and lines[at].indent == indent and not _is_item(lines[at]):
        line = lines[at]
        key = _key_of(line.text)
        if key is None or key in found:
            raise PlainAclError(f"line {line.number}: expected a key that was not there before, and a colon")
        value = line.text[len(key) + 1 :].strip()
        at += 1
        below = lines[at] if at < len(lines) else None
        if value or below is None or below.indent < indent or (below.indent == indent and not _is_item(below)):
            found[key] = _scalar(line, value)
        else:
            found[key], at = _block(lines, at)
    if at < len(lines) and lines[at].indent > indent:
        raise PlainAclError(f"line {lines[at].number} is indented as none before it")
    return found, at


def _key_of(text: str) -> str | None:
    key, colon, rest = text.partition(":")
    is_key = bool(colon) and key.isidentifier() and (not rest or rest.startswith(" "))
    return key if is_key else None


def _scalar(line: _Line, text: str) -> Node:
    if text in ("", "~", "null"):
        return ""
    if text == "[]":
        return []
    if text[0] in "'\"":
        if len(text) < len("''") or text[-1] != text[0] or text[0] in text[1:-1] or "\\" in text:
            raise PlainAclError(f"line {line.number}: quotes within quotes, or backslashes, are not understood")
        return text[1:-1]
    if text[0] in "[{&*!|>%@`" and text != "*" and not text.startswith("*."):
        raise PlainAclError(f"line {line.number}: only plain and quoted texts, and lists below a key, are understood")
    return text
