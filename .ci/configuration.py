"""Write the tables of keys in docs/configuration.md, or check that they are as written.

`.ci/configuration.py --write` writes them. Without that nothing is written: a table that differs from the declarations
of the components is a finding, as is a key in no table. There is one line per finding, and exit status 1 if there is
any. A table stands between `<!-- keys: name -->` and `<!-- end of keys -->`; its text there follows from the
declarations alone.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from dledger_base.config_keys.declared import Key
from dledger_base.config_keys.page import aliases_of, limits_of, table_of
from dledger_broker.config import KEYS as BROKER_KEYS
from dledger_namesrv.config import KEYS as NAME_SERVER_KEYS
from dledger_proxy.config import KEYS as PROXY_KEYS

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/configuration.md")
_TABLE = re.compile(r"(?<=<!-- keys: )([^>]+)( -->\n).*?(?=<!-- end of keys -->)", re.DOTALL)


def tables() -> dict[str, str]:
    """Return every table by its name."""
    sections: dict[str, list[Key]] = {}
    for key in BROKER_KEYS.settable:
        sections.setdefault(key.section.__name__, []).append(key)
    broker, name_server, proxy = BROKER_KEYS.settable, NAME_SERVER_KEYS.settable, PROXY_KEYS.settable
    return {name: table_of(keys) for name, keys in sections.items()} | {
        "limits of Broker": limits_of(key for key in BROKER_KEYS.by_name.values() if key.about.is_limit),
        "limits of NameServer": limits_of(key for key in NAME_SERVER_KEYS.by_name.values() if key.about.is_limit),
        "limits of Proxy": limits_of(key for key in PROXY_KEYS.by_name.values() if key.about.is_limit),
        "NameServer": table_of(name_server),
        "Proxy": table_of(proxy),
        "aliases of Broker": aliases_of(broker),
        "aliases of NameServer": aliases_of(name_server),
        "aliases of Proxy": aliases_of(proxy),
    }


def page(text: str, found: dict[str, str]) -> str:
    """Return the page with the tables in it."""
    return _TABLE.sub(lambda match: f"{match[1]}{match[2]}\n{found.get(match[1], '')}\n", text)


def findings(text: str, found: dict[str, str]) -> Iterator[str]:
    """Yield the findings about the page."""
    page_names = [match[1] for match in _TABLE.finditer(text)]
    for name in sorted({*page_names, *found}):
        if page_names.count(name) != 1 or name not in found:
            times = page_names.count(name)
            yield f"{PAGE}: `<!-- keys: {name} -->` stands there {times} times, tables have {list(found)}"
    if page(text, found) != text:
        yield f"{PAGE} is not what the components declare: run `make fix`"


def main() -> int:
    """Write or check the page, print the findings, and return the exit status."""
    found = tables()
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    if "--write" in sys.argv[1:]:
        text = page(text, found)
        (ROOT / PAGE).write_text(text, encoding="utf-8")
    all_findings = list(findings(text, found))
    print("\n".join(all_findings) or f"{PAGE}: every key stands there as it is declared")
    return 1 if all_findings else 0


if __name__ == "__main__":
    sys.exit(main())
