"""The table of the fields of a case, and the options that are made of it."""

from dataclasses import fields

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from workbench.case.case import Case
from workbench.case.distributions import DISTRIBUTIONS, FIXED
from workbench.case.fields import ALIGNMENTS, ARITHMETIC, DRAWN, FIELDS, PROBLEM, QUANTISED, QUANTISER, TILES, of_role
from workbench.cli.main import commands
from workbench.cli.options import case_options, cases_of
from workbench.floats import DTYPES
from workbench.foreign.run import run
from workbench.judge.headline import headline
from workbench.report.command import case_options as words_of


def test_every_field_of_a_case_has_its_rule_and_its_role() -> None:
    assert [field.name for field in fields(Case)] == [*FIELDS]
    assert of_role(PROBLEM, DRAWN, QUANTISER, TILES, ARITHMETIC) == (*FIELDS,)
    assert of_role(DRAWN) == ("seed", "distribution", "input_std")
    assert of_role(ARITHMETIC, TILES) == ("splits", "block_q", "block_k", "probs_dtype", "scores", "decode")
    assert {**QUANTISED} == {
        "codes": ("simulated", "e4m3", "e5m2"),
        "scores": ("mma", "scalar"),
        "decode": ("table", "direct"),
        "quantiser_scale": ("dynamic", "static"),
    }


@case_options
def _cases(**options: object) -> None:
    """Stand-in for a command."""


def parsed(words: list[str]) -> list[Case]:
    """The cases of words of the command line."""
    command = click.Command("cases", params=list(reversed(_cases.__click_params__)))  # type: ignore[attr-defined]
    return cases_of(command.make_context("cases", words).params)


SIDE = st.integers(-1, 40)
COUNT = st.integers(1, 9)
PROBABLY = {
    "heads": st.sampled_from([2, 4]),
    "kv_heads": st.sampled_from([1, 2]),
    "seqlen_q": COUNT,
    "seqlen_k": COUNT,
    "dtype": st.sampled_from([*DTYPES]),
    "causal": st.booleans(),
    "causal_alignment": st.sampled_from(ALIGNMENTS),
    "scale": st.floats(-4, 4, width=32, allow_subnormal=False),
    "softcap": st.floats(2.0**-10, 60),
    "window": st.tuples(SIDE, SIDE),
    "probs_dtype": st.sampled_from([*DTYPES]),
    "seed": COUNT,
    "distribution": st.sampled_from(sorted({*DISTRIBUTIONS} - {*FIXED})),
    "input_std": st.floats(0.1, 4),
    **{name: COUNT for name in ("batch", "head_dim", "splits", "block_q", "block_k")},
    **{name: st.sampled_from(words[1:]) for name, words in QUANTISED.items()},
}


@given(st.fixed_dictionaries({}, optional=PROBABLY))
def test_the_words_of_a_case_are_options_that_give_it(chosen: dict) -> None:
    assert {*PROBABLY} == {*FIELDS}
    case = Case(**{"heads": 2, "kv_heads": 1} | chosen)
    assert parsed(words_of(case, own=True)) == [case]


def test_words_of_softcap_and_window() -> None:
    case = Case(seqlen=40, softcap=30, window=(16, 0))
    assert words_of(case, own=True) == ["--seqlen", "40", "--softcap", "30.0", "--window", "16,0"]
    assert parsed(["--softcap", "30,50", "--window", "-1,4"]) == [
        Case(softcap=cap, window=(-1, 4)) for cap in (30.0, 50.0)
    ]


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("--window", "16,left"), 2, "'16,left' is not a comma-separated list of integers"),
        (("--window", "16"), None, "window must be two whole numbers of at least -1, left and right; got (16,)"),
        (("--softcap", "0"), None, "softcap must be above 0 and a normal number of float32; got 0.0"),
    ],
)
def test_what_is_no_softcap_and_no_window_is_refused(words: tuple, code: int | None, expected: str) -> None:
    result = CliRunner().invoke(commands, ["diff", "flash", *words])
    assert expected in (result.stderr if code == 2 else str(result.exception))


def test_a_headline_says_softcap_and_window() -> None:
    trace = run(lambda q, k, v, *, scale, causal, **more: v, Case(seqlen=8, head_dim=4, softcap=30, window=(2, 1)))
    assert " d=4, softcap 30.0, window 2,1, normal, seed 0" in headline(trace)
