"""Conversion between rules and policies, the form in which RocketMQ 5.3 writes rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dledger_broker.features.accounts.rules import action_of, checked_rule, resource_of
from dledger_broker.features.accounts.table import PutAccount, Rule
from dledger_remoting.accounts import SUBJECT_PREFIX, AclInfo, PolicyEntryInfo, PolicyInfo
from dledger_remoting.errors import InvalidParameter

CUSTOM: Final = "Custom"
DEFAULT: Final = "Default"
MAX_RULES: Final = 1_000
"""Maximum number of rules of one account."""
MAX_SOURCES: Final = 64
"""Maximum number of addresses of one rule."""
_ALLOW: Final = "Allow"
_DENY: Final = "Deny"


def account_of(subject: str) -> str:
    """Return the account that a subject names. Raises `InvalidParameter`."""
    kind, colon, name = subject.partition(":")
    if kind.lower() != SUBJECT_PREFIX[:-1].lower() or not colon or not name:
        raise InvalidParameter(f"subject {subject[:64]!r}: expected {SUBJECT_PREFIX}NAME")
    return name


def policy_type_of(text: str | None) -> str:
    """Return `Custom` or `Default` for the text of a policy type; `Custom` if empty. Raises `InvalidParameter`."""
    found = {CUSTOM.lower(): CUSTOM, DEFAULT.lower(): DEFAULT}.get((text or CUSTOM).lower())
    if found is None:
        raise InvalidParameter(f"policyType {(text or '')[:64]!r}: expected {CUSTOM} or {DEFAULT}")
    return found


def rules_of(policies: Sequence[PolicyInfo] | None) -> dict[str, list[Rule]]:
    """Return the rules in policies by their policy type. Raises `InvalidParameter`."""
    if not policies:
        raise InvalidParameter("The policies is empty.")
    found: dict[str, list[Rule]] = {CUSTOM: [], DEFAULT: []}
    for policy in policies:
        if not policy.entries:
            raise InvalidParameter("The policy entries is empty.")
        found[policy_type_of(policy.policy_type)] += map(_rule, policy.entries)
    return found


def with_rules(put: PutAccount, new: dict[str, list[Rule]]) -> PutAccount:
    """Return an account with new rules. They replace its old rules on the same resources.

    Several new rules on one resource are all kept, so that one can deny what another allows. Raises `InvalidParameter`.
    """
    return _changed(put, _merged(put.custom, new[CUSTOM]), _merged(put.default, new[DEFAULT]))


def without_rules(put: PutAccount, policy_type: str, resource: str | None) -> PutAccount:
    """Return an account without its rules on a resource, or without any rules if no resource is given.

    Raises `InvalidParameter`.
    """
    if not resource:
        return _changed(put, (), ())
    resource = resource_of(resource)
    custom, default = put.custom, put.default
    if policy_type == CUSTOM:
        custom = tuple(rule for rule in custom if rule.resource != resource)
    else:
        default = tuple(rule for rule in default if rule.resource != resource)
    return _changed(put, custom, default)


def told(put: PutAccount, resource_filter: str = "") -> AclInfo | None:
    """Return the rules of an account whose resources contain the filter's text; None if no rule does."""
    policies = [
        PolicyInfo(policy_type, [_entry(rule) for rule in rules if resource_filter in rule.resource])
        for policy_type, rules in ((CUSTOM, put.custom), (DEFAULT, put.default))
    ]
    policies = [policy for policy in policies if policy.entries]
    return AclInfo(SUBJECT_PREFIX + put.name, policies) if policies else None


def _changed(put: PutAccount, custom: tuple[Rule, ...], default: tuple[Rule, ...]) -> PutAccount:
    if len(custom) + len(default) > MAX_RULES:
        raise InvalidParameter(f"User:{put.name} would have more than {MAX_RULES} rules: use prefixes such as Topic:a*")
    return PutAccount(put.name, put.sealed, put.admin, put.enabled, put.white_list, custom, default)


def _merged(old: Iterable[Rule], new: Sequence[Rule]) -> tuple[Rule, ...]:
    named = {rule.resource for rule in new}
    return (*(rule for rule in old if rule.resource not in named), *dict.fromkeys(new))


def _rule(entry: PolicyEntryInfo) -> Rule:
    if not entry.resource:
        raise InvalidParameter("The resource is null.")
    if not entry.actions:
        raise InvalidParameter("The actions is empty.")
    decision = (entry.decision or "").lower()
    if decision not in (_ALLOW.lower(), _DENY.lower()):
        raise InvalidParameter("The decision is null or illegal.")
    sources = tuple(entry.source_ips or ())
    if len(sources) > MAX_SOURCES:
        raise InvalidParameter(f"a rule on {entry.resource} names {len(sources)} addresses, the limit is {MAX_SOURCES}")
    actions = tuple(dict.fromkeys(map(action_of, entry.actions)))
    return checked_rule(Rule(resource_of(entry.resource), actions, sources, decision == _ALLOW.lower()))


def _entry(rule: Rule) -> PolicyEntryInfo:
    return PolicyEntryInfo(rule.resource, list(rule.actions), list(rule.sources), _ALLOW if rule.allow else _DENY)
