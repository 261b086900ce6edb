"""Rendering of pages: templates, and how numbers, times and sizes are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dledger_admin.health.text import duration

_SIZES: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")
_STEP: Final = 1024
_LINE_WIDTH: Final = 240
_LINE_HEIGHT: Final = 40
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Pages:
    """The templates, loaded once, so that no request waits for the disk. Every value in them is escaped."""

    def __init__(self, shared: Mapping[str, object]) -> None:
        self._environment = Environment(
            loader=PackageLoader("dledger_console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.globals.update(shared)
        self._environment.filters.update(
            number=number,
            size=size,
            percent=percent,
            moment=moment,
            path=path,
            duration=duration,
            query=query,
            sparkline=sparkline,
        )
        self._environment.filters["sparkline"] = sparkline
        # A global, because the live part of a page is rendered without the page, whose imports it would not see.
        self._environment.globals["parts"] = self._environment.get_template("parts.html").module
        for name in self._environment.list_templates():
            self._environment.get_template(name)

    def page(self, template: str, values: Mapping[str, object]) -> str:
        """Return a whole page."""
        return self._environment.get_template(template).render(values)

    def live_part(self, template: str, values: Mapping[str, object]) -> str:
        """Return the block `live` of a page alone."""
        loaded = self._environment.get_template(template)
        return "".join(loaded.blocks["live"](loaded.new_context(dict(values))))


def static_files() -> dict[str, tuple[str, bytes]]:
    """Return the scripts and styles: media type and content by name."""
    folder = files("dledger_console") / "static"
    return {
        entry.name: (_TYPES[f".{entry.name.rpartition('.')[2]}"], entry.read_bytes())
        for entry in folder.iterdir()
        if f".{entry.name.rpartition('.')[2]}" in _TYPES
    }


def number(value: float | None, digits: int = 0) -> str:
    """Return a number with separators of thousands, a dash for None."""
    return "–" if value is None else f"{value:,.{digits}f}"


def size(value: float | None) -> str:
    """Return a number of bytes with the largest unit that leaves a whole part."""
    if value is None:
        return "–"
    unit = 0
    while abs(value) >= _STEP and unit < len(_SIZES) - 1:
        value /= _STEP
        unit += 1
    return f"{value:,.0f} {_SIZES[unit]}" if unit == 0 else f"{value:,.1f} {_SIZES[unit]}"


def percent(value: float | None) -> str:
    """Return a share in per cent."""
    return "–" if value is None else f"{value:.0%}"


def moment(ms: int | None) -> Markup:
    """Return a time in ms since 1970 as an element whose text the browser puts into local time."""
    if not ms:
        return Markup("–")
    try:
        at = datetime.fromtimestamp(ms / 1000, tz=UTC)
    except (ValueError, OverflowError, OSError):  # a producer may have sent any number
        return Markup.escape(f"{ms} ms since 1970")
    text = at.strftime("%Y-%m-%d %H:%M:%S.") + f"{at.microsecond // 1000:03d} UTC"
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(timespec="milliseconds"), text)


def sparkline(values: Sequence[float], label: str, seconds: float, unit: str = "per second") -> Markup:
    """Return a small line of values, the newest at the right, with its meaning in words; nothing for one value."""
    if len(values) < 2:
        return Markup("")
    top = max(values) or 1.0
    step = _LINE_WIDTH / (len(values) - 1)
    points = " ".join(
        f"{index * step:.1f},{_LINE_HEIGHT - value / top * (_LINE_HEIGHT - 2) - 1:.1f}"
        for index, value in enumerate(values)
    )
    words = f"{label} over the last {duration(round(len(values) * seconds))}: at most {number(max(values), 1)} {unit}"
    return Markup(
        '<svg class="line" role="img" aria-label="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">'
        '<polyline points="{}"/></svg>'
    ).format(words, _LINE_WIDTH, _LINE_HEIGHT, points)


def path(text: str) -> str:
    """Return a name as a part of a path: names of topics may contain `%`."""
    return quote(text, safe="")


def query(values: Mapping[str, object]) -> str:
    """Return a query with its question mark; empty values are left out."""
    given = {name: value for name, value in values.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else ""
