"""What explains a table of largest errors is said in lines: the set, what speaks against each cause, what decides."""

from dataclasses import replace

from workbench import Case
from workbench.judge.explain.hypothesis import Hypothesis
from workbench.judge.explain.measurement import Measurement
from workbench.judge.explain.plausible import Plausible, Range
from workbench.judge.explain.symptom_table import Entry, SymptomTable
from workbench.judge.explain.symptoms import Symptoms
from workbench.report.symptoms import lines

CASE = Case(seqlen=64, head_dim=32, causal=True)
ENTRY = Entry(0, 5, 0.12, 0.005)
STDS = (0.5, 1.0, 2.0)
TABLE = SymptomTable("flash", "out", (CASE,), (ENTRY,), False, {"input_std": STDS, "block_k": (16, 32)})


def cause(*texts, values=((1.0, 16), (1.0, 32))):
    members = tuple(Hypothesis(f"a.{i}", text, ()) for i, text in enumerate(texts))
    told = tuple({"input_std": std, "block_k": block} for std, block in values)
    return Plausible(members, 0.2, told[0], told)


def found(*causes, **fields):
    return replace(Symptoms(TABLE, (), causes, 0, None, 7, 1.0), **fields)


HEAD = "out of flash: 1 errors in 1 cases, random inputs, input_std and block_k unknown"


def test_a_set_is_told_with_values_and_the_measurement():
    first = cause("the scale is twice", "scores are doubled")
    second = cause("no key is masked", values=((0.5, 16), (1.0, 16)))
    measured = Measurement(CASE, 3, (Range(0.5, 0.5), Range(float("nan"), float("nan"), True)), 2)
    assert lines(found(first, second, measurement=measured)) == [
        HEAD,
        "2 causes predict every number (inputs are random, so this is approximate)",
        "  1. the scale is twice (input_std 1, block_k any)",
        "     equivalent: scores are doubled",
        "  2. no key is masked (input_std 0.5 or 1, block_k 16)",
        "to decide, measure the largest error of out in query 3 with scale 0.176777, on the q, k and v that this "
        "command writes:",
        "     workbench inputs --seqlen 64 --head-dim 32 --causal --out inputs.safetensors",
        "the causes predict",
        "  1. 0.5",
        "  2. NaN",
    ]


def test_of_many_causes_the_likeliest_are_shown():
    told = lines(found(*(cause(f"cause {i}") for i in range(5)), more=3))
    assert told[1].endswith(
        "8 causes predict every number (inputs are random, so this is approximate); the likeliest 5 are shown"
    )
    assert told[-1] == "no tried measurement separates these causes"


def test_rounding_with_some_values_and_causes_with_others_are_both_told():
    told = lines(found(cause("the scale is twice"), rounding=({"input_std": 2.0, "block_k": 16},)))
    assert told[1:3] == [
        "rounding alone may explain all of these errors if input_std 2, block_k 16; else",
        "one cause predicts every number (inputs are random, so this is approximate)",
    ]


def test_rounding_is_told_with_the_values_that_it_takes():
    some = tuple({"input_std": std, "block_k": block} for std in STDS[1:] for block in (16, 32))
    every = tuple({"input_std": std, "block_k": block} for std in STDS for block in (16, 32))
    line = "nothing to explain: rounding alone may explain all of these errors"
    assert lines(found(rounding=every)) == [HEAD, line]
    assert lines(found(rounding=some))[1] == f"{line}, if input_std 1 or 2, block_k any"


def test_what_was_not_finished_says_how_to_go_on():
    told = lines(found(stopped=True, seconds=45.0))
    line = "not finished: raise --effort, or give input_std and block_k and the errors of a smaller case"
    assert told == [HEAD, line]


def test_no_cause_is_said_to_be_none():
    told = lines(found())
    assert told[1] == "no known fault explains it: none of 7 predicts these numbers"
    assert "a binary older than its source" in told[2] and len(told) == 3
