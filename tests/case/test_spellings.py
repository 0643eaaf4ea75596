"""What a command line says of fields that belong together is read as those fields."""

import click
import pytest

from workbench.case.case import Case
from workbench.case.fields import FIELDS
from workbench.case.options import ROLES
from workbench.case.spellings import EXAMPLES, OPTION, RETIRED, TRUTHS, WORDS, Ragged, flag, length_of, said
from workbench.cli.commands import Command
from workbench.cli.options import cases_of, random_limits, run_options
from workbench.refusal import Refusal


@click.argument("target", required=False)
@run_options
def _command(**options: object) -> None:
    """Stand-in for a command."""


def params(*words: str) -> dict:
    """The parameters of words of the command line."""
    command = Command("runs", params=list(reversed(_command.__click_params__)))  # type: ignore[attr-defined]
    return command.make_context("runs", list(words)).params


def test_every_word_says_a_field_or_an_option_and_each_once() -> None:
    assert {*OPTION, *WORDS} <= {*FIELDS, *ROLES, "against"} and not {*OPTION} & {*WORDS}
    assert len(OPTION) == sum(map(len, WORDS.values())) and {*TRUTHS} <= {*WORDS}
    assert {*EXAMPLES} == {*WORDS} - {"against"} and not {*RETIRED} & {flag(name) for name in WORDS}


@pytest.mark.parametrize(("option", "example"), EXAMPLES.items())
def test_an_example_is_read_as_what_it_says(option: str, example: str) -> None:
    found = params(flag(option), example)
    words = [part.partition("=")[0] for part in example.split(",") if "=" in part]
    assert words and all(found[WORDS[option][word]] is not None for word in words)


def test_values_of_an_option_and_of_its_words_are_lists() -> None:
    found = cases_of(params("--heads", "4,8,kv=1/2,pack_gqa", "--dtype", "float16,bfloat16,probs=float32"))
    expected = {(h, kv, dtype) for h in (4, 8) for kv in (1, 2) for dtype in ("float16", "bfloat16")}
    assert {(x.heads, x.kv_heads, x.dtype) for x in found} == expected and len(found) == 8
    assert all(x.pack_gqa and x.probs_dtype == "float32" for x in found)


@pytest.mark.parametrize(
    ("words", "causal"),
    [
        ((), [False]),
        (("--causal",), [True]),
        (("--causal", "flash"), [True]),
        (("--causal", "no"), [False]),
        (("--causal", "no,yes", "flash"), [False, True]),
        (("--causal", "true"), [True]),
        (("--causal", "align=top-left", "flash"), [True]),
        (("--causal", "no,align=top-left"), [False]),
    ],
    ids=lambda part: " ".join(map(str, part)),
)
def test_an_option_that_may_stand_alone_leaves_the_target(words: tuple, causal: list) -> None:
    found = params(*words)
    assert [case.causal for case in cases_of(found)] == causal and found["target"] == (
        "flash" if "flash" in words else None
    )
    assert (found["causal_alignment"] == ("top-left",)) == any("align" in word for word in words)


def test_an_alignment_without_a_mask_is_repeated_as_one() -> None:
    assert said({"causal_alignment": "top-left"}) == ["--causal", "no,align=top-left"]
    assert said({"causal": True, "causal_alignment": "top-left"}) == ["--causal", "align=top-left"]
    assert said({"causal": True}) == ["--causal"] and said({"causal": False}) == ["--causal", "no"]


def test_a_process_of_its_own() -> None:
    alone, limited = params("--isolate", "flash"), params("--isolate", "timeout=30,memory_gb=4", "flash")
    assert (alone["isolate"], alone["timeout"], alone["target"]) == (True, None, "flash")
    assert (limited["isolate"], limited["timeout"], limited["memory_gb"], limited["target"]) == (
        True,
        30.0,
        4.0,
        "flash",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", 5),
        ("5+64+1", Ragged((5, 64, 1))),
        ("5+", Ragged((5,))),
        ("5+64:128", Ragged((5, 64), 128)),
        ("5+:9", Ragged((5,), 9)),
    ],
)
def test_lengths_of_sequences(text: str, expected: object) -> None:
    assert length_of(text) == expected and str(expected) == text
    for wrong in ("", "5+x", "+", "5:9", "5+6:"):
        with pytest.raises(ValueError, match="invalid literal"):
            length_of(wrong)


@pytest.mark.parametrize(
    ("words", "case"),
    [
        (("--seqlen", "5+64+1"), Case(seqlens_q=(5, 64, 1))),
        (("--seqlen", "5+64", "--seqlen-k", "100"), Case(seqlens_q=(5, 64), seqlen_k=100)),
        (("--seqlen", "5+64", "--seqlen-q", "1"), Case(seqlens_k=(5, 64), seqlen_q=1)),
        (("--seqlen-q", "5+64:80", "--seqlen-k", "9+8"), Case(seqlens_q=(5, 64), seqlen_q=80, seqlens_k=(9, 8))),
        (("--seqlen-k", "7+"), Case(seqlens_k=(7,), seqlen_q=7)),
    ],
)  # fmt: skip
def test_a_ragged_batch(words: tuple, case: Case) -> None:
    assert cases_of(params(*words)) == [case]


def test_rows_beyond_the_longest_sequence_are_said() -> None:
    assert said({"seqlen": 128, "seqlens_q": (5, 64)}) == ["--seqlen-q", "5+64:128", "--seqlen-k", "128"]
    assert said({"seqlens_q": (5, 64), "heads": 2}) == ["--seqlen-q", "5+64", "--heads", "2"]


def test_several_ragged_batches_are_a_list() -> None:
    found = cases_of(params("--seqlen-k", "9+8,64,7+7", "--seqlen-q", "3"))
    assert [case.seqlens_k for case in found] == [(9, 8), None, (7, 7)]


def test_random_cases_have_given_lengths_of_sequences() -> None:
    limits = random_limits(params("--seqlen-k", "9+8", "--seqlen-q", "3,4", "--causal"))
    assert limits == {"seqlen_q": (3, 4), "seqlens_k": ((9, 8),), "causal": (True,)}
    with pytest.raises(Refusal, match=r"random cases take one ragged batch .* got --seqlen-k 9\+8,7$"):
        random_limits(params("--seqlen-k", "9+8,7"))


def test_a_function_with_a_space_in_its_path_is_one_word() -> None:
    assert said({"score_mod": "my mods.py:capped"}) == ["--score-mod", "my mods.py:capped"]
