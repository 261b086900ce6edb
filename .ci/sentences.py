"""Check docstrings, comments and pages for sentences that must be read twice, or compare two commits for other changes.

`.ci/sentences.py` reads the Python files and pages that git tracks in the folders of `READ`. It prints one line per
finding, with file, line, rule and sentence, and exits with 1 if there is any. The rules:

- opening: a docstring begins with none of the words of `OPENINGS`.
- subject: a sentence begins with "Who", "What" or a relative of them only if it is a question.
- length: a sentence has at most 25 words. Code in backquotes counts as one word. Tables, layouts and examples are no
  sentences, and a row of a list is a text of its own.
- see: a docstring says more than "See `X`." or "See the module.".

Tests are held to the first and the third rule alone. In a page each paragraph has an opening, for which `IN_PAGES` are
allowed too. Code, tables and generated blocks of a page are no sentences.

`.ci/sentences.py --same BASE [COMMIT]` shows that a commit (HEAD by default) changes words only. It exits with 1 if the
syntax tree of any Python file differs from that of BASE in more than docstrings and comments. With `--help-texts`
instead of `--same`, string constants may differ as well.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
READ = (
    ".ci",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "admin",
    "bench",
    "broker",
    "chaos",
    "client",
    "console",
    "dledger",
    "docker",
    "docs",
    "examples",
    "namesrv",
    "native",
    "pipeline",
    "remoting",
    "base",
    "simulation",
    "tests",
)
"""Folders and pages whose sentences are checked."""
OPENINGS = frozenset(
    "of so what who whoever whom whose which whichever how that whatever whether where wherever".split()  # noqa: SIM905
)
IN_PAGES = frozenset({"how", "that", "where", "which"})
"""Openings of a paragraph that may be plain, as in "That costs a second"."""
SUBJECTS = frozenset({"who", "whoever", "what", "whom", "whatever", "whichever"})
MAX_WORDS = 25

_CODE = re.compile(r"``.+?``|`[^`]*`", re.DOTALL)
_WORD = re.compile(r"\W*(\w+)")
_SENTENCE_END = re.compile(r"(?<=[.!?])[)\"'*]*\s+(?=[A-Z\"'(])")
_ROW = re.compile(r"\A\s*(?:[-*]|\d{1,2}\.)\s")
_LAYOUT = re.compile(r"\s*(?:\||>>>|\.\.\.|[=+-]{3,}|#)|.*\S {3,}\S")
_SEE = re.compile(r"\s*See (?:also )?(?:`[^`]*`(?:'s)?|the \w+)[.:]?\s*\Z")
_FOR_TOOLS = re.compile(r"\s*(?:noqa|type:|pragma|fmt:|ruff:|!|-{3,})")


_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_GENERATED = re.compile(r"^<!-- \w.*?^<!-- end.*?-->", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


class Finding(NamedTuple):
    """A sentence that breaks a rule."""

    line: int
    rule: str
    sentence: str


def paragraphs(text: str) -> Iterator[str]:
    """Yield the running text of a docstring or comment, without tables, layouts and indented examples."""
    margin = min((len(line) - len(line.lstrip()) for line in text.splitlines()[1:] if line.strip()), default=0)
    paragraph_lines: list[str] = []
    in_row = False
    for number, line in enumerate([*text.splitlines(), ""]):
        indent = len(line) - len(line.lstrip()) - (margin if number else 0)
        row = bool(_ROW.match(line))
        blank = not line.strip()
        layout = bool(_LAYOUT.match(line)) or (indent >= 4 and not in_row)
        if paragraph_lines and (blank or row or layout):
            yield " ".join(paragraph_lines)
            paragraph_lines = []
        in_row = not blank and (row or in_row)
        if not blank and not layout:
            paragraph_lines.append(_ROW.sub("", line, count=1).strip())


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a docstring or comment, with `X` in place of each piece of code."""
    for paragraph in paragraphs(_CODE.sub(lambda code: "X" + "\n" * code[0].count("\n"), text)):
        yield from (found for piece in _SENTENCE_END.split(paragraph) if (found := piece.strip(" -*")))


def first_word(text: str) -> str:
    """Return the first word of a text in lower case."""
    match = _WORD.match(text)
    return match[1].lower() if match else ""


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the docstrings of a module, also those that follow an assignment."""
    for node in ast.walk(tree):
        for statement in _body(node):
            if (text := _as_docstring(statement)) is not None:
                yield text


def _body(node: ast.AST) -> list[ast.stmt]:
    return node.body if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else []


def _as_docstring(statement: ast.stmt) -> ast.Constant | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return statement.value if isinstance(statement.value.value, str) else None
    return None


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield first line and text of each comment. Comments on lines that follow each other are one."""
    run: list[str] = []
    start = column = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        text = token.string.lstrip("#").split("# noqa")[0]
        line, at = token.start
        alone = not token.line[:at].strip()
        if run and not (alone and line == start + len(run) and at == column):
            yield start, "\n".join(run)
            run = []
        if _FOR_TOOLS.match(text):
            continue
        if not run:
            start, column = line, at if alone else -1
        run.append(text)
    if run:
        yield start, "\n".join(run)


def _check_sentences(line: int, text: str) -> Iterator[Finding]:
    for sentence in sentences(text):
        words = sum(bool(re.search(r"\w", word)) for word in sentence.split())
        if words > MAX_WORDS:
            yield Finding(line, f"length, {words} words", sentence)
        if first_word(sentence) in SUBJECTS and not sentence.endswith("?"):
            yield Finding(line, "subject", sentence)


def findings(source: str) -> list[Finding]:
    """Return what breaks a rule in the source of a module, in the order of its lines."""
    found: set[Finding] = set()
    for constant in docstrings(ast.parse(source)):
        text = str(constant.value)
        summary = text.strip().partition("\n")[0]
        if first_word(text) in OPENINGS or text.lstrip().startswith("By how much"):
            found.add(Finding(constant.lineno, "opening", summary))
        if _SEE.match(text):
            found.add(Finding(constant.lineno, "see", summary))
        found.update(_check_sentences(constant.lineno, text))
    for line, text in comments(source):
        found.update(_check_sentences(line, text))
    return sorted(found)


def findings_in_tests(source: str) -> list[Finding]:
    """Return what breaks a rule in the source of a test."""
    return [found for found in findings(source) if found.rule == "opening" or found.rule.startswith("length")]


def findings_in_page(text: str) -> list[Finding]:
    """Return what breaks a rule in the running text of a page, in the order of its lines."""

    def blank(part: re.Match[str]) -> str:
        return "\n" * part[0].count("\n")

    text = _LINK.sub(r"\1", _GENERATED.sub(blank, _FENCE.sub(blank, text)))
    text = _CODE.sub(lambda code: "X" + blank(code), text)
    found: set[Finding] = set()
    line = 1
    for block in re.split(r"(\n(?:[ \t]*\n)+)", text):
        for paragraph in paragraphs(block):
            if first_word(paragraph) in OPENINGS - IN_PAGES and not paragraph.endswith("?"):
                found.add(Finding(line, "opening", paragraph[:80]))
            found.update(_check_sentences(line, paragraph))
        line += block.count("\n")
    return sorted(found)


def findings_in(name: str) -> list[Finding]:
    """Return what breaks a rule in a file of this name; nothing in files that are neither Python nor pages."""
    file = ROOT / name
    if not name.endswith((".py", ".md")) or not file.is_file():
        return []
    text = file.read_text(encoding="utf-8")
    if name.endswith(".md"):
        return findings_in_page(text)
    return findings_in_tests(text) if name.startswith("tests/") else findings(text)


class _WithoutWords(ast.NodeTransformer):
    """Removes docstrings, and the placeholders of empty bodies; with `blank_texts`, all text constants are equal."""

    def __init__(self, *, blank_texts: bool) -> None:
        self._blank_texts = blank_texts

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if self._blank_texts and isinstance(node.value, str):
            node.value = ""
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if body := _body(node):
            node.body = [  # type: ignore[attr-defined]
                statement
                for statement in body
                if not isinstance(statement, ast.Pass)
                and not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
            ]
        return node


def same_code(before: str, after: str, *, blank_texts: bool = False) -> bool:
    """Return whether two sources have the same syntax tree, apart from docstrings and comments.

    With `blank_texts`, other string constants may differ as well.
    """
    trees = (_WithoutWords(blank_texts=blank_texts).visit(ast.parse(source)) for source in (before, after))
    return len({ast.dump(tree) for tree in trees}) == 1


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True, text=True).stdout


def compare(base: str, commit: str = "HEAD", *, blank_texts: bool) -> int:
    """Print how each changed file differs between two commits, and return the exit status."""
    different = words = 0
    for line in _git("diff", "--no-renames", "--name-status", base, commit).splitlines():
        status, name = line.split("\t", 1)
        if not name.endswith(".py"):
            print(f"{name}: no Python, not compared")
            continue
        is_same = status == "M" and same_code(
            _git("show", f"{base}:{name}"), _git("show", f"{commit}:{name}"), blank_texts=blank_texts
        )
        if is_same:
            words += 1
        else:
            print(f"{name}: the code differs")
            different += 1
    print(f"{base} and {commit}: {words} Python files differ in words only, {different} in code")
    return 1 if different else 0


def main(arguments: list[str]) -> int:
    """Check the folders or compare two commits, and return the exit status."""
    if arguments[:1] in (["--same"], ["--help-texts"]):
        return compare(*arguments[1:], blank_texts=arguments[0] == "--help-texts")
    count = 0
    for name in _git("ls-files", "-z", "--", *(arguments or READ)).split("\0"):
        for finding in findings_in(name):
            print(f"{name}:{finding.line}: {finding.rule}: {finding.sentence}")
            count += 1
    print(
        f"sentences: {count} to be written anew" if count else "sentences: each can be read once, as far as words tell"
    )
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
