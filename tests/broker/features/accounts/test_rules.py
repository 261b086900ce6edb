"""The rules of an account decide as the module's docstring says, whatever their number."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dledger_broker.features.accounts.rules import AccountRules, Decision
from dledger_broker.features.accounts.table import Rule
from dledger_broker.kernel.rights import Action, Demand, ResourceKind

NAMES = st.text("ab", min_size=1, max_size=4)
RULES = st.lists(
    st.builds(
        Rule,
        st.just("*")
        | st.builds("{}:{}".format, st.sampled_from(ResourceKind), NAMES | st.just("*") | NAMES.map("{}*".format)),
        st.lists(st.sampled_from(["Pub", "Sub", "Get", "All"]), min_size=1, max_size=2).map(tuple),
        st.sampled_from([(), ("10.0.0.1",), ("10.0.0.2", "10.0.1.*")]),
        st.booleans(),
    ),
    max_size=12,
)
DEMANDS = st.builds(
    Demand, st.sampled_from([(Action.PUB,), (Action.SUB, Action.GET)]), st.sampled_from(ResourceKind), NAMES
)


def decide_in_turn(rules: list[Rule], demand: Demand, address: str) -> Decision:
    """Look at all rules, the most specific first."""
    found: list[tuple[int, int, bool]] = []
    for rule in rules:
        kind, _, name = rule.resource.partition(":")
        prefix = name.removesuffix("*")
        if rule.resource != "*" and (kind != demand.kind or not demand.name.startswith(prefix)):
            continue
        if rule.resource != "*" and name == prefix != demand.name:
            continue
        if not any(text == "All" or text in demand.actions for text in rule.actions):
            continue
        if rule.sources and address not in rule.sources and not (address == "10.0.1.9" and "10.0.1.*" in rule.sources):
            continue
        exact = name == prefix and rule.resource != "*"
        found.append((0 if exact else 1 if prefix else 2 if rule.resource != "*" else 3, -len(prefix), rule.allow))
    if not found:
        return Decision.NOTHING_SAID
    return Decision.ALLOWED if min(found)[2] else Decision.DENIED


@settings(max_examples=150, deadline=None, derandomize=True)
@given(RULES, RULES, DEMANDS, st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.1.9"]))
def test_indexed_rules_decide_as_if_each_was_looked_at(
    custom: list[Rule], default: list[Rule], demand: Demand, address: str
) -> None:
    expected = decide_in_turn(custom, demand, address)
    if expected is Decision.NOTHING_SAID:
        expected = decide_in_turn(default, demand, address)
    assert AccountRules(custom, default).decide(demand, address) is expected


def test_a_demand_is_compared_only_with_the_rules_on_its_resource() -> None:
    rules = AccountRules([Rule(f"Topic:T{number}*", ("Pub",), (), allow=True) for number in range(1_000)])
    demand = Demand((Action.PUB,), ResourceKind.TOPIC, "T123-x")
    assert [rule.name for rule in rules._custom.about(demand)] == ["T123", "T12", "T1"]
