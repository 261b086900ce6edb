"""Rules: which of an account's decides on what is asked for.

The rules of the account itself come before those that count by default: these are looked at if none of the others
says anything about the action, the resource and the address. Of several, the one for exactly this name decides, then
the longest prefix, then the rule for all names, then the one for resources of all kinds; a refusal comes before a
permission. That no rule says anything is a refusal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from dledger_broker.features.accounts.addresses import Matches, compile_address
from dledger_broker.features.accounts.table import Rule
from dledger_broker.kernel.rights import Action, Demand, ResourceKind
from dledger_remoting.errors import InvalidParameter

ALL: Final = "All"
"""In a rule: every action that RocketMQ knows, and so not `LOG`."""
MAX_NAME_CHARS: Final = 255


class Decision(Enum):
    """What rules say."""

    ALLOWED = auto()
    DENIED = auto()
    NOTHING_SAID = auto()


class _Compiled(NamedTuple):
    """A rule that can be looked at. `name` is None for all names; `kind` is None for resources of all kinds."""

    kind: ResourceKind | None
    name: str | None
    is_prefix: bool
    actions: frozenset[Action]
    sources: tuple[Matches, ...]
    allow: bool

    @property
    def rank(self) -> tuple[bool, int, int, bool]:
        """Rules with a lower one come first."""
        pattern = 2 if self.name is None else int(self.is_prefix)
        return self.kind is None, pattern, -len(self.name or ""), self.allow

    def says_something(self, demand: Demand, address: str) -> bool:
        """Whether it is about what is asked for."""
        if self.kind is not None and self.kind is not demand.kind:
            return False
        if self.name is not None:
            matches = demand.name.startswith(self.name) if self.is_prefix else demand.name == self.name
            if not matches:
                return False
        if self.actions.isdisjoint(demand.actions):
            return False
        return not self.sources or any(source(address) for source in self.sources)


class AccountRules:
    """The rules of one account, ready to be asked."""

    def __init__(self, custom: Iterable[Rule], default: Iterable[Rule] = ()) -> None:
        """Raises `InvalidParameter` for a rule that says nothing."""
        self._custom, self._default = _compiled(custom), _compiled(default)

    def decide(self, demand: Demand, address: str) -> Decision:
        """Whether the account may have what is asked for, from an address."""
        for rules in (self._custom, self._default):
            for rule in rules:
                if rule.says_something(demand, address):
                    return Decision.ALLOWED if rule.allow else Decision.DENIED
        return Decision.NOTHING_SAID


def demand_of(action: str, resource: str) -> Demand:
    """What who wants to do something to a resource asks for. Raises `InvalidParameter`."""
    kind, name = _resource(resource)
    if kind is None or name.endswith("*"):
        raise InvalidParameter(f"resource {resource[:64]!r}: one topic, group or cluster is expected")
    found = _actions(action)
    if len(found) != 1:
        raise InvalidParameter(f"action {action[:64]!r}: one of {', '.join(Action)} is expected")
    return Demand(found, kind, name).judged


def checked_rule(rule: Rule) -> Rule:
    """The rule as it may be stored. Raises `InvalidParameter`."""
    _compile(rule)
    return rule


def action_of(text: str) -> str:
    """An action's name in the form of rules, whatever its case. Raises `InvalidParameter`."""
    names = {name.lower(): name for name in (*Action, ALL)}
    found = names.get(text.strip().lower())
    if found is None:
        raise InvalidParameter(f"action {text[:64]!r}: expected one of {', '.join((*Action, ALL))}")
    return str(found)


def _compiled(rules: Iterable[Rule]) -> Sequence[_Compiled]:
    return sorted((_compile(rule) for rule in rules), key=lambda rule: rule.rank)


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
    """Kind and name of a resource. Raises `InvalidParameter`."""
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
    """A resource as rules have it: what was made for `topic:pay` ends with `Topic:pay`. Raises `InvalidParameter`."""
    kind, name = _resource(text)
    return name if kind is None else f"{kind}:{name}"


def _actions(text: str) -> tuple[Action, ...]:
    name = action_of(text)
    if name == ALL:
        return tuple(action for action in Action if action is not Action.LOG)
    return (Action(name),)
