"""Rules of an account, and how they decide on a demand.

Only rules that match the action, the resource and the address count. Custom rules are tried first; default rules count
only if no custom rule matches. Among several matching rules the most specific resource decides:

1. the exact name
2. the longest prefix
3. all names of a kind
4. resources of all kinds

At the same rank a denial wins over a permission. If no rule matches, the demand is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

from dledger_broker.features.accounts.addresses import Matches, compile_address
from dledger_broker.features.accounts.table import Rule
from dledger_broker.kernel.rights import Action, Demand, ResourceKind
from dledger_remoting.errors import InvalidParameter

ALL: Final = "All"
"""Name for every action that RocketMQ knows. It does not include `LOG` and `SPEAK`, which RocketMQ does not know."""
_OURS: Final = (Action.LOG, Action.SPEAK)
MAX_NAME_CHARS: Final = 255


class Decision(Enum):
    """Result of evaluating rules."""

    ALLOWED = auto()
    DENIED = auto()
    NOTHING_SAID = auto()


class _Compiled(NamedTuple):
    """Rule in the form in which it is evaluated.

    `name` is None for all names; `kind` is None for resources of all kinds.
    """

    kind: ResourceKind | None
    name: str | None
    is_prefix: bool
    actions: frozenset[Action]
    sources: tuple[Matches, ...]
    allow: bool

    def says_something(self, demand: Demand, address: str) -> bool:
        """Return whether the rule matches a demand on one of its resources, from an address."""
        if self.actions.isdisjoint(demand.actions):
            return False
        return not self.sources or any(source(address) for source in self.sources)


_Resource: TypeAlias = tuple[ResourceKind | None, str | None, bool]
"""Kind, name and `is_prefix` of the resources of a rule."""


class _Index:
    """Compiled rules by their resources. A demand costs a look-up for each length of a prefix, however many rules."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules: dict[_Resource, list[_Compiled]] = {}
        for rule in sorted(map(_compile, rules), key=lambda rule: rule.allow):
            self._rules.setdefault((rule.kind, rule.name, rule.is_prefix), []).append(rule)
        lengths = {(kind, len(name)) for kind, name, is_prefix in self._rules if name is not None and is_prefix}
        self._prefix_lengths: dict[ResourceKind | None, list[int]] = {}
        for kind, length in sorted(lengths, key=lambda found: found[1], reverse=True):
            self._prefix_lengths.setdefault(kind, []).append(length)

    def about(self, demand: Demand) -> Iterator[_Compiled]:
        """Yield the rules on a demand's resource: the most specific first, and denials first at the same rank."""
        kind, name = demand.kind, demand.name
        yield from self._rules.get((kind, name, False), ())
        for length in self._prefix_lengths.get(kind, ()):
            if length <= len(name):
                yield from self._rules.get((kind, name[:length], True), ())
        yield from self._rules.get((kind, None, False), ())
        yield from self._rules.get((None, None, False), ())


class AccountRules:
    """Rules of one account, compiled and indexed by their resources."""

    def __init__(self, custom: Iterable[Rule], default: Iterable[Rule] = ()) -> None:
        """Compile the rules. Raises `InvalidParameter` for an invalid rule."""
        self._custom, self._default = _Index(custom), _Index(default)

    def decide(self, demand: Demand, address: str) -> Decision:
        """Return the decision of the first matching rule, for a demand from an address."""
        for rules in (self._custom, self._default):
            for rule in rules.about(demand):
                if rule.says_something(demand, address):
                    return Decision.ALLOWED if rule.allow else Decision.DENIED
        return Decision.NOTHING_SAID


def demand_of(action: str, resource: str) -> Demand:
    """Return the demand for an action on a resource. Raises `InvalidParameter`."""
    kind, name = _resource(resource)
    if kind is None or name.endswith("*"):
        raise InvalidParameter(f"resource {resource[:64]!r}: one topic, group or cluster is expected")
    found = _actions(action)
    if len(found) != 1:
        raise InvalidParameter(f"action {action[:64]!r}: one of {', '.join(Action)} is expected")
    return Demand(found, kind, name).judged


def checked_rule(rule: Rule) -> Rule:
    """Return a rule that is known to be valid. Raises `InvalidParameter`."""
    _compile(rule)
    return rule


def action_of(text: str) -> str:
    """Return an action's name as it is written in rules, for text in any case. Raises `InvalidParameter`."""
    names = {name.lower(): name for name in (*Action, ALL)}
    found = names.get(text.strip().lower())
    if found is None:
        raise InvalidParameter(f"action {text[:64]!r}: expected one of {', '.join((*Action, ALL))}")
    return str(found)


def _compile(rule: Rule) -> _Compiled:
    kind, name = _resource(rule.resource)
    actions = frozenset(action for text in rule.actions for action in _actions(text))
    if not actions:
        raise InvalidParameter(f"rule on {rule.resource}: the actions are empty")
    is_prefix = name.endswith("*")
    of_all = name == "*"
    return _Compiled(
        kind,
        None if of_all else name.removesuffix("*"),
        is_prefix and not of_all,
        actions,
        tuple(map(compile_address, rule.sources)),
        rule.allow,
    )


def _resource(text: str) -> tuple[ResourceKind | None, str]:
    """Return kind and name of a resource; the kind is None for resources of all kinds. Raises `InvalidParameter`."""
    if text == "*":
        return None, "*"
    kinds = {kind.lower(): kind for kind in ResourceKind}
    kind, colon, name = text.partition(":")
    if kind.lower() not in kinds or not colon or not name or len(name) > MAX_NAME_CHARS or "*" in name[:-1]:
        raise InvalidParameter(
            f"resource {text[:64]!r}: expected Topic:NAME, Group:NAME or Cluster:NAME, of at most {MAX_NAME_CHARS} "
            "characters, in which NAME may end with *, or *"
        )
    return kinds[kind.lower()], name


def resource_of(text: str) -> str:
    """Return a resource as rules write it, for example `Topic:pay` for `topic:pay`. Raises `InvalidParameter`."""
    kind, name = _resource(text)
    return name if kind is None else f"{kind}:{name}"


def _actions(text: str) -> tuple[Action, ...]:
    name = action_of(text)
    if name == ALL:
        return tuple(action for action in Action if action not in _OURS)
    return (Action(name),)
