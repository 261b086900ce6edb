"""Write the client's blocking classes from the asynchronous ones, or check that they are up to date.

`.ci/facade.py --write` writes them. Without `--write`, a module that differs is a finding. Prints one line per finding,
and exits with 1 if there is any.

A blocking class has the constructor and the public calls of its asynchronous class, with the same arguments. Each call
runs on the event loop of the object (`dledger_client.blocking`).
"""

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "client/dledger_client"
LINE_CHARS = 120
HEAD = '''"""{title} for programs without an event loop: the calls of `{source}`, blocking.

`make fix` writes this module from `{module}.py`.
"""

from __future__ import annotations

'''
NOT_CALLS = frozenset({"start", "close"})
PARAMETER_NOTES = {"filter": "  # noqa: A002 -- as all consumers have it"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Facade(NamedTuple):
    """A blocking class, and what its asynchronous class does not tell."""

    name: str
    source: str
    module: str
    """Module of the asynchronous class."""
    title: str
    thread: str
    example: str = ""
    is_checked: bool = False
    """True if the blocking class checks arguments itself, on the thread of the caller."""
    undo: Mapping[str, str] = {}
    """Method of the asynchronous class that takes a result back, by call. A signal handler may interrupt the call."""
    plain: frozenset[str] = frozenset({"client_id", "traces_dropped", "stalls", "flow_stops"})
    """Properties that any thread may read."""
    replaced: Mapping[str, tuple[str, str]] = {}
    """Type and value of constructor arguments that are passed on in another form, by name."""
    imports: tuple[str, ...] = ()
    left_out: frozenset[str] = frozenset()
    """Calls and keyword arguments that the blocking class does not have, or has in a form of its own."""
    options: str = ""
    """Name of a `TypedDict` of the constructor's keyword arguments. A class written by hand inherits the calls, and has
    the constructor and `close`.
    """


FACADES = {
    "sync/admin": Facade("SyncAdmin", "Admin", "admin", "Administrator", "dledger admin"),
    "sync/producer": Facade(
        "SyncProducer",
        "Producer",
        "producer",
        "Producer",
        "dledger producer",
        'with SyncProducer("127.0.0.1:9876", group="PG") as producer:\n    producer.send("orders", b"body")',
    ),
    "sync/pull": Facade(
        "SyncPullConsumer",
        "PullConsumer",
        "pull",
        "Pull consumer",
        "dledger pull consumer",
        'with SyncPullConsumer("127.0.0.1:9876", "CG") as consumer:\n'
        '    consumer.assign(consumer.queues("orders"))\n'
        "    for message in consumer.poll(100, timeout=1.0):\n"
        "        print(message.body)\n"
        "    consumer.commit()",
        is_checked=True,
        undo={"poll": "_put_back"},
    ),
    "sync/simple": Facade(
        "SyncSimpleConsumer",
        "SimpleConsumer",
        "simple",
        "Simple consumer",
        "dledger simple consumer",
        'with SyncSimpleConsumer("127.0.0.1:9876", "workers", "jobs", invisible=60) as consumer:\n'
        "    for message in consumer.receive(10):\n"
        "        work(message.body)\n"
        "        consumer.ack(message)",
        is_checked=True,
        undo={"receive": "put_back"},
        left_out=frozenset({"put_back"}),
    ),
    "sync/transactions": Facade(
        "SyncTransactionProducer",
        "TransactionProducer",
        "transactions",
        "Transactions",
        "dledger transactions",
        'with SyncTransactionProducer("127.0.0.1:9876", group="payments", check=check) as producer:\n'
        '    transaction = producer.begin("orders", b"order 17", unique_key="order-17")\n'
        "    producer.commit(transaction)",
        is_checked=True,
        replaced={"check": ("SyncCheck", "in_threads(check)")},
        imports=("from ..transactions import SyncCheck, in_threads",),
    ),
    "sync/calls": Facade(
        "PushConsumerCalls",
        "PushConsumer",
        "consumer",
        "Push consumer",
        "",
        left_out=frozenset({"run_forever", "receive", "nack", "settings", "concurrency", "codec"}),
        options="ConsumerOptions",
    ),
}


def written(module: str, facade: Facade) -> str:
    """Return the text of a generated module, as `ruff format` leaves it."""
    tree = ast.parse((PACKAGE / f"{facade.module}.py").read_text())
    source = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == facade.source)
    body = "\n".join(_class_lines(facade, source))
    names = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    own = {"blocking": ["Blocking", "ClosedAfterUse", "evaluate"], "arguments": ["checked"]}
    lines = [
        f"from ..{home} import {', '.join(name for name in known if name in names)}"
        for home, known in own.items()
        if names & set(known)
    ]
    lines += [f"from ..{facade.module} import {facade.source}", *facade.imports]
    if facade.options and "TypedDict" in names:
        lines.append("from typing import TypedDict")
    given = {alias for line in lines for alias in re.split(r"[ ,]+", line.split(" import ")[1])}
    lines += list(_imports(tree, facade.module, names - given))
    return _formatted(module, HEAD.format(**facade._asdict()) + "\n".join(lines) + "\n\n\n" + body + "\n")


def _imports(tree: ast.Module, module: str, names: set[str]) -> Iterator[str]:
    """Yield an import for each name that the asynchronous module imports or defines."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name in names:
                    yield f"from {'.' * (node.level + bool(node.level))}{node.module} import {alias.name}"
        elif isinstance(node, ast.ClassDef) and node.name in names:
            yield f"from ..{module} import {node.name}"
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in names:
            yield f"from ..{module} import {node.target.id}"


def _class_lines(facade: Facade, source: ast.ClassDef) -> Iterator[str]:
    functions = [node for node in source.body if isinstance(node, Function)]
    constructor = next(node for node in functions if node.name == "__init__")
    if facade.options:
        further = constructor.args.kwarg
        base = "TypedDict" if further is None else ast.unparse(further.annotation)[len("Unpack[") : -1]
        yield f"class {facade.options}({base}, total=False):"
        yield f'    """The options of `{facade.source}` that a blocking one has, too."""\n'
        for argument in constructor.args.kwonlyargs:
            if argument.arg not in facade.left_out:
                yield f"    {_parameter(argument, None)}"
        yield "\n"
    if facade.is_checked:
        yield "@checked"
    parameter = _type_parameter(source)
    yield f"class {facade.name}(ClosedAfterUse{f', Generic{parameter}' if parameter else ''}):"
    if facade.options:
        yield f'    """The calls of a blocking `{facade.source}` that need nothing but its event loop."""\n'
        yield f"    _client: {facade.source}{parameter}\n    _blocking: Blocking\n"
    else:
        example = f"\n\n{textwrap.indent(facade.example, '    ')}\n    " if facade.example else ""
        yield f'    """A blocking `{facade.source}`.{example}"""\n'
        yield from _constructor(facade, constructor)
        yield from _call(facade, next(node for node in functions if node.name == "close"), "finish")
    for function in functions:
        if not function.name.startswith("_") and function.name not in NOT_CALLS | facade.left_out:
            yield from _call(facade, function, "run")


def _type_parameter(source: ast.ClassDef) -> str:
    """Return the parameter of a generic class in brackets, empty for any other class."""
    generic = next((base for base in source.bases if ast.unparse(base).startswith("Generic[")), None)
    return "" if generic is None else ast.unparse(generic).removeprefix("Generic")


def _constructor(facade: Facade, function: Function) -> Iterator[str]:
    arguments = function.args
    for argument in (*arguments.args, *arguments.kwonlyargs):
        if argument.arg in facade.replaced:
            argument.annotation = ast.Name(facade.replaced[argument.arg][0])
    parameters = "".join(
        f"        {each},{PARAMETER_NOTES.get(each.partition(':')[0], '')}\n" for each in _parameters(arguments)
    )
    values = {name: value for name, (_, value) in facade.replaced.items()}
    yield f"    def __init__(\n{parameters}    ) -> None:"
    yield f'        """Open the blocking client with the arguments of `{facade.source}`."""'
    yield f"        self._client = {facade.source}({_passed_on(arguments, values)})"
    yield f'        self._blocking = Blocking("{facade.thread}", self._client.start(), self._client.close)\n'


def _call(facade: Facade, function: Function, run: str) -> Iterator[str]:
    is_property = any(isinstance(node, ast.Name) and node.id == "property" for node in function.decorator_list)
    access = f"self._client.{function.name}"
    if not is_property:
        access += f"({_passed_on(function.args, {})})"
    if isinstance(function, ast.FunctionDef) and not (is_property and function.name in facade.plain):
        access = f"evaluate(lambda: {access})"
    undo = facade.undo.get(function.name)
    if undo is not None:
        access += f", undo=self._client.{undo}"
    returns = ast.unparse(function.returns) if function.returns is not None else "None"
    if is_property:
        yield "    @property"
    yield f"    def {function.name}({', '.join(_parameters(function.args))}) -> {returns}:"
    yield from _docstring(facade, function, is_property=is_property)
    if not (is_property and function.name in facade.plain):
        access = f"self._blocking.{run}({access})"
    note = "  # noqa: SLF001 -- its blocking form" if undo is not None and undo.startswith("_") else ""
    yield f"        {'' if returns == 'None' else 'return '}{access}{note}\n"


def _parameters(arguments: ast.arguments) -> list[str]:
    """Return the parameters, each with its annotation and default."""
    first_default = len(arguments.args) - len(arguments.defaults)
    defaults = [None] * first_default + list(arguments.defaults)
    found = [_parameter(argument, default) for argument, default in zip(arguments.args, defaults, strict=True)]
    if arguments.kwonlyargs:
        found.append("*")
        pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        found += [_parameter(argument, default) for argument, default in pairs]
    return found


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    annotation = "" if argument.annotation is None else f": {ast.unparse(argument.annotation)}"
    if default is None:
        return argument.arg + annotation
    return f"{argument.arg}{annotation} = {ast.unparse(default)}"


def _passed_on(arguments: ast.arguments, values: Mapping[str, str]) -> str:
    """Return the arguments of the call of the asynchronous class."""
    found = [argument.arg for argument in arguments.args[1:]]
    names = [argument.arg for argument in arguments.kwonlyargs]
    return ", ".join([*found, *(f"{name}={values.get(name, name)}" for name in names)])


def _docstring(facade: Facade, function: Function, *, is_property: bool) -> Iterator[str]:
    """Yield the first sentence of a call's docstring. It says where the rest is."""
    text = ast.get_docstring(function) or ""
    sentence = re.split(r"(?<=\.)\s", text.replace("\n", " "), maxsplit=1)[0].removesuffix(".")
    rest = "" if is_property else f", as `{facade.source}.{function.name}` does"
    whole = f'"""{sentence}{rest}."""'
    indent = " " * 8
    lines = [whole]
    if len(indent + whole) > LINE_CHARS:
        lines = textwrap.wrap(whole.removesuffix('"""'), LINE_CHARS - len(indent) - 3, break_on_hyphens=False)
        lines.append('"""')
    yield from (indent + line for line in lines)


def _formatted(module: str, text: str) -> str:
    """Return a text as `make fix` leaves it: imports sorted and joined, then formatted."""
    for command in (["check", "--fix", "--quiet", "--select", "I"], ["format", "--quiet"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", f"client/dledger_client/{module}.py", "-"],
            input=text,
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=True,
        )
        text = done.stdout
    return text


def main() -> int:
    """Write or compare all modules. Return the exit code."""
    findings = 0
    for module, facade in FACADES.items():
        path, text = PACKAGE / f"{module}.py", written(module, facade)
        if "--write" in sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            findings += 1
            print(f"{path.relative_to(ROOT)}: not what {facade.module}.py makes of it: `make fix` writes it")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
