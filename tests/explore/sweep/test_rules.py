"""Rules over the fields of cases: what holds in all cases of a group and in no other, and no more than that."""

from itertools import product

import pytest

from workbench import Case
from workbench.explore.sweep.plan import random_cases
from workbench.explore.sweep.row import Row
from workbench.explore.sweep.rules import boundaries, rule_of


def split(cases, fails):
    rows = [Row(case, "bug" if fails(case) else "rounding", settled={"block_k": 64}) for case in cases]
    return [row for row in rows if row.fails], [row for row in rows if not row.fails]


CROSS = [
    Case(seqlen_q=q, seqlen_k=k, causal=c, dtype=t, heads=h, kv_heads=1, softcap=s)
    for q, k, c, t, h, s in product(
        (1, 128), (64, 65, 96, 100, 128, 192, 200), (False, True), ("float32", "float16"), (1, 4), (None, 20.0)
    )
]

TRUE = {
    "causal": lambda case: case.causal,
    "causal and seqlen_k % 64 != 0": lambda case: case.seqlen_k % 64 != 0 and case.causal,
    "seqlen_k >= 128": lambda case: case.seqlen_k >= 100,
    "dtype = float16 and with softcap": lambda case: case.dtype == "float16" and case.softcap is not None,
    "group = 4 and seqlen_q < seqlen_k and seqlen_k % 32 = 0": lambda case: (
        case.heads == 4 and case.seqlen_q < case.seqlen_k and case.seqlen_k % 32 == 0
    ),
}


@pytest.mark.parametrize(("text", "fails"), TRUE.items(), ids=TRUE)
def test_the_rule_of_a_group_holds_in_all_of_it_and_in_no_other(text, fails):
    failing, others = split(CROSS, fails)
    rule = rule_of(failing, others)
    assert rule is not None and rule.certain
    assert (rule.failing, rule.others) == (len(failing), len(others))
    said = [{*rule.terms}, *({*one.split(" and ")} for one in rule.beside)]
    if text == "seqlen_k >= 128":
        text = "seqlen_k >= 100"
    equal = {"seqlen_k % 64 != 0": "seqlen_k % block_k != 0", "group = 4": "heads = 4"}
    terms = {*text.split(" and ")}
    alike = [terms, {equal.get(one, one) for one in terms}]
    assert any(one in said for one in alike), (rule.text, rule.beside)


def test_a_tile_that_differs_from_case_to_case():
    rows = [
        Row(Case(seqlen_q=8, seqlen_k=n, block_k=k), "") for n, k in product((16, 32, 48, 64, 80, 96), (16, 32, 64))
    ]
    failing = [row for row in rows if row.case.seqlen_k % row.case.block_k]
    rule = rule_of(failing, [row for row in rows if row not in failing])
    assert rule is not None and rule.text == "seqlen_k % block_k != 0" and rule.beside == ()


def test_no_rule_is_made_up():
    failing, others = split(CROSS, lambda case: hash(repr(case)) % 3 == 0)
    assert rule_of(failing, others) is None
    assert rule_of(failing, []) is None and rule_of([], others) is None


def test_rules_that_the_cases_do_not_tell_apart_are_said():
    failing, others = split([Case(seqlen=n) for n in (63, 64, 65, 128, 127, 129, 192)], lambda case: case.seqlen_k % 64)
    rule = rule_of(failing, others)
    assert rule is not None and rule.terms == ("seqlen % block_k != 0",)
    assert rule.beside == ("seqlen % 64 != 0", "seqlen % 32 != 0", "seqlen % 16 != 0") and rule.more == 3
    assert not rule.certain, "4 of 7 cases follow one of so many rules by chance"


def test_a_rule_of_few_cases_is_not_certain():
    failing, others = split([Case(seqlen=n, causal=c) for n in (5, 6) for c in (False, True)], lambda case: case.causal)
    rule = rule_of(failing, others)
    assert rule is not None and rule.text == "causal" and not rule.certain


def test_the_rule_of_two_thousand_random_cases():
    cases = random_cases("flash", 2000)
    failing, others = split(cases, lambda case: case.causal and case.seqlen_k % 16 != 0)
    rule = rule_of(failing, others)
    assert rule is not None and {*rule.terms} == {"causal", "seqlen_k % 16 != 0"} and rule.certain and not rule.beside


def test_the_boundary_along_each_option():
    failing, others = split(CROSS, lambda case: case.seqlen_k % 64 != 0 and case.causal)
    found = {one.field: one for one in boundaries(failing, others)}
    assert {*found} == {"seqlen_q", "seqlen_k", "causal", "dtype", "heads", "group", "softcap"}
    assert found["causal"].values == ((False, 0, 112), (True, 64, 112)) and found["causal"].tells
    assert [x for x, n, _ in found["seqlen_k"].values if n] == [65, 96, 100, 200]
    assert not found["dtype"].tells and not found["heads"].tells
