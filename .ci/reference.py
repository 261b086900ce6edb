"""Write the page with the handler of each request code and the class of each command kind, or check the page.

`.ci/reference.py --write` writes the page. Without `--write`, a page that differs from the declarations of the broker's
features is a finding. A handler or a command outside its feature's folder always is one. Prints one line per finding,
and exits with 1 if there is any.
"""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from dledger_broker.clients.channels import Channels
from dledger_broker.config import BrokerConfig
from dledger_broker.features import COMMANDS, FEATURES
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.feature import Replicated
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.routes import Route
from dledger_broker.service import BrokerService
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.node import NODE_ID
from dledger_remoting.codes import request_code_name
from dledger_remoting.hosts import HostAddress

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/reference/requests-and-commands.md")
PACKAGE = "dledger_broker"
HEAD = """# Request codes and command kinds

This page lists the handler of each request code that a broker understands, and the class of each kind of command in its
log. `make fix` writes it from the declarations of the features. [Compatibility](../compatibility.md) and
[wire](../wire.md) describe the requests.

## Request codes

- The column "needs" names the nodes that may handle the request. A majority has confirmed a confirmed
  leader since the request came.
- The column "forwarded" says whether a node that does not lead, or may not know enough, hands the request on.
- The column "effect" says what the request may have done if no answer comes: nothing, a change, or it is still held.

| code | name | feature | handler | needs | forwarded | effect |
|---|---|---|---|---|---|---|
"""
COMMANDS_HEAD = """
## Command kinds

Kinds below 16 belong to the log.

| kind | command | owner | module | says |
|---|---|---|---|---|
"""
NEEDS = {"NOTHING": "any node", "LEADER": "leader", "CONFIRMED_LEADER": "confirmed leader"}


def folder_of(feature: Replicated) -> str:
    """Return the module name of a feature's folder."""
    return f"{PACKAGE}.features.{feature.name.replace(' ', '_')}"


def routes() -> Iterator[tuple[Replicated, int, Route]]:
    """Yield the routes of every feature on a node that is never started."""
    config = BrokerConfig(broker_group="broker-a", node_id=NODE_ID, data_dir=Path("unused"))
    memory, group = BrokerInMemory(lead=False), LeadershipView(NODE_ID, "127.0.0.1:10911")
    host, counters = HostAddress("127.0.0.1", 10911), BrokerCounters()
    service = BrokerService(
        config, FEATURES, memory.machine, memory.node, memory.env, group, counters, host, Channels()
    )
    for feature, part in zip(FEATURES, service.parts, strict=True):
        for code, route in part.routes.items():
            yield feature, code, route


def link(module: str, label: str) -> str:
    """Return a link to a module of the broker from the page."""
    return f"[{label}](../../broker/{module.replace('.', '/')}.py)"


def short(module: str) -> str:
    """Return a module's name inside the broker's package."""
    return module.removeprefix(f"{PACKAGE}.")


def effect_of(route: Route) -> str:
    """Return the word for the possible effect of a request."""
    if route.effect.unanswered is not None:
        return "held"
    return "changes" if route.effect.changes else "none"


def first_sentence(command: type) -> str:
    """Return the first sentence of a command's docstring, without its period."""
    return (inspect.getdoc(command) or "").replace("\n", " ").partition(". ")[0].rstrip(".")


def page(found: list[tuple[Replicated, int, Route]]) -> str:
    """Return the whole page."""
    requests = [
        f"| {code:d} | `{request_code_name(code)}` | {feature.name} "
        f"| {link(route.handler.__module__, f'`{short(route.handler.__module__)}`')} `{route.handler.__qualname__}` "
        f"| {NEEDS[route.needs.name]} | {'yes' if route.forwarded else 'no'} | {effect_of(route)} |"
        for feature, code, route in sorted(found, key=lambda item: item[1])
    ]
    owners = {kind: feature.name for feature in FEATURES for kind in feature.commands}
    commands = [
        f"| {kind} | `{command.__name__}` | {owners.get(kind, 'kernel')} "
        f"| {link(command.__module__, f'`{short(command.__module__)}`')} | {first_sentence(command)} |"
        for kind, command in sorted(COMMANDS.types.items())
    ]
    return HEAD + "\n".join(requests) + "\n" + COMMANDS_HEAD + "\n".join(commands) + "\n"


def misplaced(found: list[tuple[Replicated, int, Route]]) -> Iterator[str]:
    """Yield one line for each handler or command outside the folder of its feature, or of the kernel."""
    for feature, code, route in found:
        module = route.handler.__module__
        if not module.startswith(f"{folder_of(feature)}."):
            yield f"request code {code:d} of feature {feature.name} is handled in {module}, not in {folder_of(feature)}"
    owners = {kind: folder_of(feature) for feature in FEATURES for kind in feature.commands}
    for kind, command in COMMANDS.types.items():
        owner = owners.get(kind, f"{PACKAGE}.kernel")
        if not command.__module__.startswith(f"{owner}."):
            yield f"command kind {kind} is defined in {command.__module__}, not in {owner}"


def main() -> int:
    """Write or check the page, print the findings, and return the exit status."""
    found = list(routes())
    findings = list(misplaced(found))
    text = page(found)
    if "--write" in sys.argv[1:]:
        (ROOT / PAGE).write_text(text, encoding="utf-8")
    elif not (ROOT / PAGE).is_file() or (ROOT / PAGE).read_text(encoding="utf-8") != text:
        findings.append(f"{PAGE} is not what the features declare: run `make fix`")
    print("\n".join(findings) or f"{PAGE}: every handler and command lies in its feature's folder")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
