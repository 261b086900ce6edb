"""Conversion between accounts in the form of RocketMQ 4 and rules.

In RocketMQ 4 the permission of a topic or group is complete. With `orders=PUB` an account may not consume `orders`,
even if its default permission allows consuming. Therefore a permission becomes two rules: one that allows and one that
denies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from dledger_broker.features.accounts.addresses import compile_address
from dledger_broker.features.accounts.policies import MAX_RULES
from dledger_broker.features.accounts.rules import checked_rule
from dledger_broker.features.accounts.table import PutAccount, Rule
from dledger_broker.kernel.rights import Action, ResourceKind
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.plain_accounts import PlainAccount, PlainAccountHeader

_BOTH: Final = (Action.PUB, Action.SUB)
_WORDS: Final = {"PUB": (Action.PUB,), "SUB": (Action.SUB,), "PUB|SUB": _BOTH, "SUB|PUB": _BOTH, "DENY": ()}
"""Actions of each permission word, matched exactly. RocketMQ takes any other word for DENY; here it is an error."""
_BETWEEN_PATTERNS: Final = re.compile(r",(?![^{]*\})")
"""Pattern of a comma that separates addresses, and is not within `{1,7}`."""
MAX_PATTERNS: Final = 256


def patterns_of(text: str) -> tuple[str, ...]:
    """Return the address patterns in a text. Raises `InvalidParameter`."""
    found = tuple(part.strip() for part in _BETWEEN_PATTERNS.split(text) if part.strip())
    if len(found) > MAX_PATTERNS:
        raise InvalidParameter(f"{len(found)} addresses, the limit is {MAX_PATTERNS}: use networks such as 10.0.0.0/8")
    for pattern in found:
        compile_address(pattern)
    return found


def changed_by(header: PlainAccountHeader, old: PutAccount) -> PutAccount:
    """Return an account with the fields that a request has; other fields stay, except `admin`, which is always set.

    Raises `InvalidParameter`.
    """
    white_list = old.white_list if header.white_remote_address is None else patterns_of(header.white_remote_address)
    custom, default = old.custom, old.default
    for kind, perms, default_perm in (
        (ResourceKind.TOPIC, header.topic_perms, header.default_topic_perm),
        (ResourceKind.GROUP, header.group_perms, header.default_group_perm),
    ):
        if perms is not None:
            custom = (*_of_other_kinds(custom, kind), *_rules_of_perms(kind, perms))
        if default_perm:
            allowed = _actions(default_perm)
            rules = (checked_rule(Rule(f"{kind}:*", allowed)),) if allowed else ()
            default = (*_of_other_kinds(default, kind), *rules)
    if len(custom) + len(default) > MAX_RULES:
        raise InvalidParameter(f"account {header.access_key} would have more than {MAX_RULES} rules")
    return msgspec.structs.replace(old, admin=header.admin, white_list=white_list, custom=custom, default=default)


def plain_account(put: PutAccount) -> PlainAccount:
    """Return an account in the form of RocketMQ 4, which cannot express rules with prefixes or of other actions."""
    return PlainAccount(
        put.name,
        ",".join(put.white_list),
        put.admin,
        _default_perm(put.default, ResourceKind.TOPIC),
        _default_perm(put.default, ResourceKind.GROUP),
        _perms(put.custom, ResourceKind.TOPIC),
        _perms(put.custom, ResourceKind.GROUP),
    )


def _rules_of_perms(kind: ResourceKind, perms: str) -> list[Rule]:
    found: list[Rule] = []
    for part in filter(None, map(str.strip, perms.split(","))):
        name, equals, words = part.rpartition("=")
        if not equals or not name or "*" in name:
            raise InvalidParameter(f"permission {part[:64]!r}: expected NAME=PUB, SUB, PUB|SUB or DENY")
        allowed = _actions(words)
        denied = tuple(action for action in (Action.PUB, Action.SUB) if action not in allowed)
        resource = f"{kind}:{name}"
        if allowed:
            found.append(checked_rule(Rule(resource, allowed)))
        if denied:
            found.append(checked_rule(Rule(resource, denied, allow=False)))
    return found


def _actions(words: str) -> tuple[Action, ...]:
    try:
        return _WORDS[words.strip()]
    except KeyError:
        raise InvalidParameter(f"permission {words[:64]!r}: expected PUB, SUB, PUB|SUB or DENY") from None


def _of_other_kinds(rules: Iterable[Rule], kind: ResourceKind) -> tuple[Rule, ...]:
    return tuple(rule for rule in rules if not rule.resource.startswith(f"{kind}:"))


def _default_perm(rules: Sequence[Rule], kind: ResourceKind) -> str:
    return next((_text(rule) for rule in rules if rule.resource == f"{kind}:*" and rule.allow), "DENY")


def _perms(rules: Sequence[Rule], kind: ResourceKind) -> list[str]:
    names = dict.fromkeys(
        rule.resource.partition(":")[2]
        for rule in rules
        if rule.resource.startswith(f"{kind}:") and not rule.resource.endswith("*")
    )
    texts: list[str] = []
    for name in names:
        allowed = [rule for rule in rules if rule.allow and rule.resource == f"{kind}:{name}"]
        texts.append(f"{name}={_text(allowed[0]) if allowed else 'DENY'}")
    return texts


def _text(rule: Rule) -> str:
    return "|".join(word for word, action in (("PUB", Action.PUB), ("SUB", Action.SUB)) if action in rule.actions)
