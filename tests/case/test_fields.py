"""The table of the fields of a case, and the options that are made of it."""

from dataclasses import fields

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from workbench.case.case import Case
from workbench.case.command_line import case_options as words_of
from workbench.case.distributions import DISTRIBUTIONS, FIXED
from workbench.case.fields import (
    ALIGNMENTS,
    ARITHMETIC,
    DRAWN,
    FIELDS,
    LAID,
    PROBLEM,
    QUANTISED,
    QUANTISER,
    TILES,
    of_role,
)
from workbench.case.formats import FORMATS
from workbench.case.spellings import NEED_VALUE, WORDS
from workbench.cli.main import commands
from workbench.cli.options import case_options, cases_of
from workbench.floats import DTYPES
from workbench.foreign.run import run
from workbench.trace.headline import headline


def test_every_field_of_a_case_has_its_rule_and_its_role() -> None:
    assert [field.name for field in fields(Case)] == [*FIELDS]
    assert of_role(PROBLEM, LAID, DRAWN, QUANTISER, TILES, ARITHMETIC) == (*FIELDS,)
    assert of_role(DRAWN) == ("seed", "distribution", "input_std")
    assert of_role(ARITHMETIC, TILES) == ("splits", "block_q", "block_k", "pack_gqa", "probs_dtype", "scores", "decode")
    assert {**QUANTISED} == {
        "codes": (*FORMATS,),
        "codes_of": ("qkv", "kv"),
        "scale_of": ("head", "token", "block", "tile"),
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
    "head_dim_v": COUNT,
    "alibi_slopes": st.just("geometric"),
    "alibi_form": st.sampled_from(["distance", "column"]),
    "sinks": st.just("normal"),
    "dropout_p": st.floats(0.125, 0.5, width=32),
    "score_mod": st.just("mods.py:capped"),
    "mask_mod": st.just("mods.py:document"),
    "page_size": COUNT,
    "kv_layout": st.sampled_from(["NHD", "HND"]),
    "pack_gqa": st.booleans(),
    "probs_dtype": st.sampled_from([*DTYPES]),
    "seed": COUNT,
    "distribution": st.sampled_from(sorted({*DISTRIBUTIONS} - {*FIXED})),
    "input_std": st.floats(0.1, 4),
    **{name: COUNT for name in ("batch", "head_dim", "splits", "block_q", "block_k")},
    **{name: st.sampled_from(words[1:]) for name, words in QUANTISED.items() if name not in ("codes", "scale_of")},
    "codes": st.sampled_from(["e4m3", "int8"]),
    "scale_of": st.just("token"),
}


RAGGED = st.fixed_dictionaries(
    {"seqlens_k": st.tuples(COUNT, COUNT)}, optional={"seqlens_q": st.tuples(COUNT, COUNT), "seqlen_k": st.just(12)}
)
#: what the lengths of sequences tell
TOLD = ("batch", "seqlen_q", "seqlen_k")


@given(st.fixed_dictionaries({}, optional=PROBABLY), st.just({}) | RAGGED)
def test_the_words_of_a_case_are_options_that_give_it(chosen: dict, ragged: dict) -> None:
    assert {*PROBABLY, "seqlens_q", "seqlens_k", "shared_kv"} == {*FIELDS}
    if ragged:
        chosen = {name: x for name, x in chosen.items() if name not in TOLD} | ragged
    case = Case(**{"heads": 2, "kv_heads": 1} | chosen)
    # how pages are laid out says nothing where there are none, nor how ALiBi counts
    silent = [word for name in NEED_VALUE if getattr(case, name) is None for word in WORDS[name].values()]
    said = case.but(**{name: getattr(Case(), name) for name in silent})
    assert parsed(words_of(case, own=True)) == [said]


def test_words_of_what_only_goes_together() -> None:
    for case in (
        Case(shared_kv=True, head_dim=24, head_dim_v=16, scale=0.5, heads=2, kv_heads=1),
        Case(heads=2, sinks=(0.5, -1.0), alibi_slopes=(0.25, 2.0), alibi_form="column", seqlen=12),
    ):
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
        (("--window", "16"), None, "--window must be two whole numbers, left and right, of at least -1; got 16"),
        (("--softcap", "0"), None, "--softcap must be a normal float32 above 0; got 0"),
    ],
)
def test_what_is_no_softcap_and_no_window_is_refused(words: tuple, code: int | None, expected: str) -> None:
    result = CliRunner().invoke(commands, ["diff", "flash", *words])
    assert expected in (result.stderr if code == 2 else str(result.exception))


def test_a_headline_says_softcap_and_window() -> None:
    trace = run(lambda q, k, v, *, scale, causal, **more: v, Case(seqlen=8, head_dim=4, softcap=30, window=(2, 1)))
    assert " d=4, softcap 30.0, window 2,1, normal inputs, seed 0" in headline(trace)
