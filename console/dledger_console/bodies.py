"""Bodies of messages for people: as JSON, text or hexadecimal numbers, cut where they are too long for a page."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from dledger_client import ReceivedMessage

Form: TypeAlias = Literal["text", "json", "hex"]

MAX_CHARS: Final = 64 << 10
"""Maximum number of characters of a body on a page."""
MAX_HEX_BYTES: Final = 4 << 10
"""Maximum number of bytes that a page shows in hexadecimal numbers."""
_ROW_BYTES: Final = 16


class Body(msgspec.Struct, frozen=True):
    """A body as a page shows it. `size` is in bytes, `is_cut` says that `text` is not all.

    `forms` are those in which it can be shown. `fault` says why it cannot be read; it is then shown as it is stored.
    """

    form: Form
    text: str
    size: int
    is_cut: bool
    forms: list[Form]
    fault: str | None


def body_of(message: ReceivedMessage, wanted: Literal["auto", "text", "json", "hex"]) -> Body:
    """Return a message's body in a form. `auto`, and a form that does not fit, is the first that fits."""
    body = message.body
    forms: list[Form] = ["hex"]
    text = _text_in(body) if message.fault is None else None
    formatted = None
    if text is not None:
        forms.insert(0, "text")
        formatted = _format_json(body)
        if formatted is not None:
            forms.insert(0, "json")
    form = wanted if wanted != "auto" and wanted in forms else forms[0]
    whole = formatted if form == "json" else text
    if form == "hex" or whole is None:
        return Body("hex", _dump(body[:MAX_HEX_BYTES]), len(body), len(body) > MAX_HEX_BYTES, forms, message.fault)
    return Body(form, whole[:MAX_CHARS], len(body), len(whole) > MAX_CHARS, forms, message.fault)


def _text_in(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _format_json(body: bytes) -> str | None:
    """Return an object or array with indents. Other JSON, such as a number, is text."""
    if body.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
        return msgspec.json.format(body, indent=2).decode()
    except (msgspec.MsgspecError, RecursionError):
        return None


def _dump(body: bytes) -> str:
    """Return lines with an offset, 16 bytes in hexadecimal numbers, and the characters among them."""
    rows = []
    for begin in range(0, len(body), _ROW_BYTES):
        row = body[begin : begin + _ROW_BYTES]
        characters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{begin:08x}  {row.hex(' '):<47}  {characters}")
    return "\n".join(rows)
