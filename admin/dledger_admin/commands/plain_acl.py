"""Reader of RocketMQ 4's `plain_acl.yml`: the accounts in it, and the addresses that need none.

Format: the part of YAML that such files use: maps and lists by indentation, texts with or without quotes, `[]` for an
empty list, comments. Everything else, and every unknown key, is refused with its line number. Errors repeat nothing of
the file.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple, TypeAlias

from dledger_remoting.plain_accounts import PlainAccountHeader

Node: TypeAlias = "str | list[Node] | dict[str, Node]"

_WHITE_LIST: Final = "globalWhiteRemoteAddresses"
_ACCOUNTS: Final = "accounts"
_IGNORED_KEYS: Final = frozenset({"dataVersion"})
_TEXT_KEYS: Final = (
    *("accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm"),
)
_LIST_KEYS: Final = ("topicPerms", "groupPerms")


class PlainAclError(ValueError):
    """A file is no `plain_acl.yml`, or says what cannot be imported."""


class PlainAcl(NamedTuple):
    """Content of a file. `white_list` is None if the file does not mention it."""

    accounts: list[PlainAccountHeader]
    white_list: list[str] | None


class _Line(NamedTuple):
    number: int
    indent: int
    text: str


def read_plain_acl(text: str) -> PlainAcl:
    """Return the content of a `plain_acl.yml`. Raises `PlainAclError`."""
    lines = _split_lines(text)
    root, rest = _parse_block(lines, 0) if lines else ({}, 0)
    if rest != len(lines) or not isinstance(root, dict):
        raise PlainAclError("expected `accounts:` and `globalWhiteRemoteAddresses:` at the beginning of lines")
    unknown = root.keys() - {_WHITE_LIST, _ACCOUNTS} - _IGNORED_KEYS
    if unknown:
        raise PlainAclError(f"there are keys beside {_ACCOUNTS} and {_WHITE_LIST}")
    accounts = root.get(_ACCOUNTS, [])
    if not isinstance(accounts, list):
        raise PlainAclError(f"{_ACCOUNTS} is no list")
    parsed_accounts = [_parse_account(number, entry) for number, entry in enumerate(accounts, 1)]
    duplicates = [name for name, count in Counter(entry.access_key for entry in parsed_accounts).items() if count > 1]
    if duplicates:
        raise PlainAclError(f"there is more than one account {duplicates[0]}: RocketMQ takes the first, leave one")
    return PlainAcl(parsed_accounts, _require_texts(_WHITE_LIST, root[_WHITE_LIST]) if _WHITE_LIST in root else None)


def _parse_account(number: int, node: Node) -> PlainAccountHeader:
    what = f"account {number}"
    if not isinstance(node, dict):
        raise PlainAclError(f"{what} is no map")
    if node.keys() - {*_TEXT_KEYS, *_LIST_KEYS}:
        raise PlainAclError(f"{what} has keys beside {', '.join((*_TEXT_KEYS, *_LIST_KEYS))}")
    texts = {key: _require_text(f"{key} of {what}", node[key]) for key in _TEXT_KEYS if key in node}
    for key in ("accessKey", "secretKey"):
        if not texts.get(key):
            raise PlainAclError(f"{what} has no {key}")
    admin = texts.get("admin", "false").lower()
    if admin not in ("true", "false", ""):
        raise PlainAclError(f"admin of {what} is neither true nor false")
    perms = {key: _require_texts(f"{key} of {what}", node.get(key, [])) for key in _LIST_KEYS}
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


def _require_text(what: str, node: Node) -> str:
    if not isinstance(node, str):
        raise PlainAclError(f"{what} is no text")
    return node


def _require_texts(what: str, node: Node) -> list[str]:
    if node == "":
        return []
    if not isinstance(node, list):
        raise PlainAclError(f"{what} is no list")
    return [_require_text(what, item) for item in node]


# -------------------------------------------------------------------- YAML


def _split_lines(text: str) -> list[_Line]:
    lines: list[_Line] = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = _strip_comment(line).rstrip()
        if not bare.strip() or bare == "---":
            continue
        indent = len(bare) - len(bare.lstrip(" "))
        if bare[indent] == "\t":
            raise PlainAclError(f"line {number} is indented by a tab")
        lines.append(_Line(number, indent, bare[indent:]))
    return lines


def _strip_comment(line: str) -> str:
    quote = ""
    for index, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"" and (index == 0 or line[index - 1] in " :-"):
            quote = letter
        elif letter == "#" and (index == 0 or line[index - 1] in " \t"):
            return line[:index]
    return line


def _parse_block(lines: list[_Line], index: int) -> tuple[Node, int]:
    """Return the map or list that begins in a line, and the index of the line behind it."""
    first = lines[index]
    return _parse_list(lines, index, first.indent) if _is_item(first) else _parse_map(lines, index, first.indent)


def _is_item(line: _Line) -> bool:
    return line.text == "-" or line.text.startswith("- ")


def _parse_list(lines: list[_Line], index: int, indent: int) -> tuple[Node, int]:
    items: list[Node] = []
    while index < len(lines) and lines[index].indent == indent and _is_item(lines[index]):
        line = lines[index]
        inner = line.text[1:].lstrip(" ")
        if _find_key(inner) is None:
            items.append(_parse_scalar(line, inner))
            index += 1
        else:
            # The map goes on in the lines below, as deep as its first key.
            lines[index] = _Line(line.number, indent + len(line.text) - len(inner), inner)
            node, index = _parse_map(lines, index, lines[index].indent)
            items.append(node)
    return items, index


def _parse_map(lines: list[_Line], index: int, indent: int) -> tuple[Node, int]:
    entries: dict[str, Node] = {}
    while index < len(lines) and lines[index].indent == indent and not _is_item(lines[index]):
        line = lines[index]
        key = _find_key(line.text)
        if key is None or key in entries:
            raise PlainAclError(f"line {line.number}: expected a key that was not there before, and a colon")
        value = line.text[len(key) + 1 :].strip()
        index += 1
        below = lines[index] if index < len(lines) else None
        if value or below is None or below.indent < indent or (below.indent == indent and not _is_item(below)):
            entries[key] = _parse_scalar(line, value)
        else:
            entries[key], index = _parse_block(lines, index)
    if index < len(lines) and lines[index].indent > indent:
        raise PlainAclError(f"line {lines[index].number} is indented as none before it")
    return entries, index


def _find_key(text: str) -> str | None:
    key, colon, rest = text.partition(":")
    is_key = bool(colon) and key.isidentifier() and (not rest or rest.startswith(" "))
    return key if is_key else None


def _parse_scalar(line: _Line, text: str) -> Node:
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
