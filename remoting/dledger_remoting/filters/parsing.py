"""Parser of SQL92 expressions: operator precedence by binding powers (Pratt), with limits on what a client may ask for.

Operators from the loosest to the tightest, with an optional `NOT` before the words of the fourth row:

1. `OR`
2. `AND`
3. `=`, `<>`, `IS [NOT] NULL`
4. `<`, `<=`, `>`, `>=`, `BETWEEN`, `IN`, `CONTAINS`, `STARTSWITH`, `ENDSWITH`
5. `+`, `-`, `NOT` before an operand

So `NOT a = 1` means `(NOT a) = 1`. The grammar and the rules on which operands may be compared are RocketMQ's. One
thing differs: text after a whole expression is an error here. RocketMQ ignores it: there, `a LIKE 'x%'` counts as `a`.
"""

from __future__ import annotations

from typing import Final, Never

from dledger_remoting.filters.limits import DEFAULT_LIMITS, MAX_EXPRESSION_CHARS, FilterLimits, FilterTooLarge
from dledger_remoting.filters.syntax import (
    NUMBERS,
    And,
    Comparison,
    In,
    IsNull,
    Kind,
    Literal,
    Match,
    Negation,
    Node,
    Not,
    Operator,
    Or,
    Property,
    Search,
    is_boolean,
)
from dledger_remoting.filters.tokens import Token, TokenKind, fail, placed, shown, tokens
from dledger_remoting.filters.values import in_order

_OR, _AND, _EQUALITY, _COMPARISON, _PREFIX = range(1, 6)
_SIGNS: Final = {
    "=": _EQUALITY,
    "<>": _EQUALITY,
    ">": _COMPARISON,
    ">=": _COMPARISON,
    "<": _COMPARISON,
    "<=": _COMPARISON,
}
_WORDS: Final = {
    "OR": _OR,
    "AND": _AND,
    "IS": _EQUALITY,
    "NOT": _COMPARISON,
    "BETWEEN": _COMPARISON,
    "IN": _COMPARISON,
    "CONTAINS": _COMPARISON,
    "STARTSWITH": _COMPARISON,
    "ENDSWITH": _COMPARISON,
}
_CONSTANTS: Final = {
    "TRUE": Literal(Kind.BOOLEAN, value=True),
    "FALSE": Literal(Kind.BOOLEAN, value=False),
    "NULL": Literal(Kind.NULL, None),
}
_SEARCHES: Final = {search.value: search for search in Search}
_MAX_INT32: Final = (1 << 31) - 1
_MAX_INT64: Final = (1 << 63) - 1


def parse_sql92(expression: str, limits: FilterLimits = DEFAULT_LIMITS) -> Node:
    """Parse an expression whose value is true, false or null.

    Raises `SubscriptionParseFailed` that names line and column of the fault, and `FilterTooLarge` beyond a limit.
    """
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise FilterTooLarge(
            f"SQL92 expression of {len(expression)} characters is longer than {MAX_EXPRESSION_CHARS}", "chars"
        )
    return _Parser(expression, limits).whole()


class _Parser:
    def __init__(self, expression: str, limits: FilterLimits) -> None:
        self._expression = expression
        self._limits = limits
        self._tokens = tokens(expression)
        self._next_token = next(self._tokens)
        self._nesting_depth = 0
        self._operand_count = 0

    def whole(self) -> Node:
        start = self._next_token
        node = self._operation(_OR)
        if self._next_token.kind is not TokenKind.END:
            self._fail(self._next_token, f"{shown(self._next_token)} behind a whole expression")
        return self._boolean(node, start)

    # ---------------------------------------------------------------- tokens

    def _fail(self, token: Token, what: str) -> Never:
        fail(self._expression, token.place, what)

    def _exceeds(self, token: Token, what: str, limit: str) -> Never:
        raise FilterTooLarge(placed(self._expression, token.place, what), limit)

    def _advance(self) -> Token:
        token = self._next_token
        if token.kind is not TokenKind.END:
            self._next_token = next(self._tokens)
        return token

    def _is_next(self, text: str) -> bool:
        return self._next_token.text == text and self._next_token.kind in {TokenKind.KEYWORD, TokenKind.SIGN}

    def _accept(self, text: str) -> bool:
        is_next = self._is_next(text)
        if is_next:
            self._advance()
        return is_next

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            self._fail(self._next_token, f"expected {text}, found {shown(self._next_token)}")

    # ---------------------------------------------------------------- operations

    def _operation(self, weakest: int) -> Node:
        """Parse an operand and the operators behind it that bind at least as tightly as `weakest`.

        No operator may bind more tightly than its predecessor: `a IS NULL > 1` is not an expression.
        """
        start = self._next_token
        left = self._operand()
        tightest = _PREFIX
        while weakest <= (power := self._power()) <= tightest:
            tightest = power
            operator = self._advance()
            if power <= _AND:
                left = self._logic(operator, left, start, power)
            elif operator.text == "IS":
                left = self._is_null(operator, left)
            elif power == _EQUALITY:
                left = self._equality(operator, left, start)
            elif operator.kind is TokenKind.SIGN:
                left = self._ordering(operator, Operator(operator.text), left, start)
            else:
                left = self._predicate(operator, left, start)
        return left

    def _power(self) -> int:
        """Return how tightly the next token binds as an operator, 0 if it is not an operator."""
        token = self._next_token
        if token.kind is TokenKind.SIGN:
            return _SIGNS.get(token.text, 0)
        return _WORDS.get(token.text, 0) if token.kind is TokenKind.KEYWORD else 0

    def _logic(self, operator: Token, left: Node, start: Token, power: int) -> Node:
        """Parse a chain such as `left AND b AND c`. A longer chain is not deeper."""
        operands = [self._boolean(left, start)]
        while True:
            place = self._next_token
            operands.append(self._boolean(self._operation(power + 1), place))
            if not self._accept(operator.text):
                break
        depth = self._depth(operator, *operands)
        return And(tuple(operands), depth) if power == _AND else Or(tuple(operands), depth)

    def _is_null(self, operator: Token, left: Node) -> Node:
        negated = self._accept("NOT")
        self._expect("NULL")
        node = IsNull(left, self._depth(operator, left))
        return self._negated(operator, node) if negated else node

    def _equality(self, operator: Token, left: Node, start: Token) -> Node:
        place = self._next_token
        right = self._operation(_COMPARISON)
        for token, operand in ((start, left), (place, right)):
            if isinstance(operand, Literal) and operand.kind is Kind.NULL:
                self._fail(token, "NULL equals nothing, use IS NULL")
        if isinstance(left, Literal) and isinstance(right, Literal) and left.kind is Kind.BOOLEAN is not right.kind:
            self._fail(start, f"a boolean cannot be compared with a {right.kind.value}")
        comparison = Comparison(Operator.EQUAL, left, right, self._depth(operator, left, right))
        return self._negated(operator, comparison) if operator.text == "<>" else comparison

    def _ordering(self, token: Token, operator: Operator, left: Node, start: Token) -> Node:
        place = self._next_token
        right = self._operation(_PREFIX)
        self._check_ordered(left, start)
        self._check_ordered(right, place)
        return Comparison(operator, left, right, self._depth(token, left, right))

    def _predicate(self, operator: Token, left: Node, start: Token) -> Node:
        """Parse `BETWEEN`, `IN` or a search, perhaps negated."""
        negated = operator.text == "NOT"
        word = self._advance() if negated else operator
        if word.kind is TokenKind.KEYWORD:
            if word.text == "BETWEEN":
                return self._between(word, left, start, negated=negated)
            if word.text == "IN":
                return self._in(left, start, negated=negated)
            if word.text in _SEARCHES:
                text = self._string().text
                return Match(_SEARCHES[word.text], left, text, negated, self._depth(word, left))
        return self._fail(word, f"expected BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH, found {shown(word)}")

    def _between(self, word: Token, left: Node, start: Token, *, negated: bool) -> Node:
        low_place = self._next_token
        low = self._operation(_PREFIX)
        self._expect("AND")
        high_place = self._next_token
        high = self._operation(_PREFIX)
        for operand, place in ((left, start), (low, low_place), (high, high_place)):
            self._check_ordered(operand, place)
        if not negated and isinstance(low, Literal) and isinstance(high, Literal) and not in_order(low, high):
            self._fail(
                high_place, f"BETWEEN {low.value} AND {high.value} matches nothing: the first must not be larger"
            )
        depth = self._depth(word, left, low, high)
        below, above = (
            (Operator.LESS, Operator.GREATER) if negated else (Operator.GREATER_OR_EQUAL, Operator.LESS_OR_EQUAL)
        )
        sides = (Comparison(below, left, low, depth), Comparison(above, left, high, depth))
        depth = self._depth(word, *sides)
        return Or(sides, depth) if negated else And(sides, depth)

    def _in(self, left: Node, start: Token, *, negated: bool) -> Node:
        if not isinstance(left, Property):
            self._fail(start, "only the name of a property may stand before IN")
        self._expect("(")
        values = {self._string().text}
        while self._accept(","):
            values.add(self._string().text)
        self._expect(")")
        return In(left.name, frozenset(values), negated)

    # ---------------------------------------------------------------- operands

    def _operand(self) -> Node:
        """Parse an operand together with the signs, `NOT` or parenthesis before it."""
        token = self._advance()
        if token.kind is TokenKind.SIGN and token.text in "+-(":
            return self._nest(token)
        if token.kind is TokenKind.KEYWORD:
            if token.text == "NOT":
                return self._nest(token)
            if token.text in _CONSTANTS:
                self._count_operand(token)
                return _CONSTANTS[token.text]
        if token.kind in {TokenKind.KEYWORD, TokenKind.SIGN, TokenKind.END}:
            self._fail(token, f"expected a property or a literal, found {shown(token)}")
        self._count_operand(token)
        return Property(token.text) if token.kind is TokenKind.NAME else self._literal(token)

    def _nest(self, token: Token) -> Node:
        self._nesting_depth += 1
        if self._nesting_depth > self._limits.depth:
            self._too_deep(token)
        if token.text == "(":
            node = self._operation(_OR)
            self._expect(")")
        else:
            place = self._next_token
            node = self._operation(_PREFIX)
            if token.text == "-":
                node = Negation(node, self._depth(token, node))
            elif token.text == "NOT":
                node = self._negated(token, self._boolean(node, place))
        self._nesting_depth -= 1
        return node

    def _literal(self, token: Token) -> Literal:
        if token.kind is TokenKind.STRING:
            return Literal(Kind.STRING, token.text)
        if token.kind is TokenKind.INTEGER:
            number = int(token.text.rstrip("lL")) if len(token.text) <= 20 else _MAX_INT64 + 1
            if number > _MAX_INT64:
                self._fail(token, f"{shown(token)} is larger than {_MAX_INT64}")
            return Literal(Kind.INT32 if number <= _MAX_INT32 else Kind.INT64, number)
        value = float(token.text)
        if value == float("inf"):
            self._fail(token, f"{shown(token)} is larger than any double")
        return Literal(Kind.DOUBLE, value)

    def _string(self) -> Token:
        token = self._advance()
        if token.kind is not TokenKind.STRING:
            self._fail(token, f"expected a string, found {shown(token)}")
        self._count_operand(token)
        return token

    # ---------------------------------------------------------------- checks

    def _boolean(self, node: Node, start: Token) -> Node:
        """Return the node if it is a condition.

        In RocketMQ a property alone is a condition: false, or null if the message lacks the property.
        """
        if is_boolean(node) or isinstance(node, Property):
            return node
        return self._fail(start, "expected a condition, such as a comparison, found a value")

    def _check_ordered(self, node: Node, start: Token) -> None:
        """Check that a node may have an order: numbers have one, and properties may hold numbers."""
        if isinstance(node, Literal):
            if node.kind not in NUMBERS:
                self._fail(start, f"a {node.kind.value} has no order: only numbers can be compared so")
        elif is_boolean(node):
            self._fail(start, "a condition has no order: only numbers can be compared so")

    def _negated(self, token: Token, node: Node) -> Node:
        return Not(node, self._depth(token, node))

    def _depth(self, token: Token, *nodes: Node) -> int:
        """Return the depth of a node that has these as operands. Fails if it exceeds the limit."""
        depth = max(node.depth for node in nodes) + 1
        if depth > self._limits.depth:
            self._too_deep(token)
        return depth

    def _too_deep(self, token: Token) -> Never:
        self._exceeds(token, f"nested more than {self._limits.depth} levels deep", "depth")

    def _count_operand(self, token: Token) -> None:
        self._operand_count += 1
        if self._operand_count > self._limits.operands:
            self._exceeds(token, f"more than {self._limits.operands} literals and names", "operands")
