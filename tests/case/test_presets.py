"""What a user says of a foreign kernel's contract: fields, presets, and what contradicts the kernel."""

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.numpy_kernels import Style, kernel
from tests.refusals import invoked, refusal, refused
from workbench import Case, diff, run
from workbench.case.contract import of_dict, of_foreign
from workbench.case.presets import PRESETS, fields_of, parse, words
from workbench.case.promises import unwrapped

CASE = Case(seqlen=40, head_dim=16, causal=True)
contract, message = partial(invoked, "contract"), partial(refused, "diff")


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("block_k=64", {"block_k": 64}),
        (" base2 = true , scores_dtype=float32 ", {"base2": True, "scores_dtype": "float32"}),
        ("splits=none,exp_ulps=2.5,mask_sentinel=-1e9", {"splits": None, "exp_ulps": 2.5, "mask_sentinel": -1e9}),
        ("empty_lse=inf,empty_out=-inf", {"empty_lse": math.inf, "empty_out": -math.inf}),
        ("split_bounds=[0,40,128],tile_order=[1, 0]", {"split_bounds": [0, 40, 128], "tile_order": [1, 0]}),
    ],
)
def test_words(text: str, fields: dict[str, Any]) -> None:
    assert parse(text) == fields
    assert fields_of(words(fields), CASE) == fields_of(text, CASE)


def test_fields_of_a_preset_are_marked_unless_they_are_said_beside_it() -> None:
    """Of a contract they are `of_preset`: neither assumed nor declared of this very kernel."""
    assert unwrapped(parse("torch-sdpa")) == (dict(PRESETS["torch-sdpa"]), tuple(PRESETS["torch-sdpa"]))
    fields, of_preset = unwrapped(parse("exp_ulps=4,triton,base2=False"))
    assert fields == {**PRESETS["triton"], "exp_ulps": 4, "base2": False}
    assert {*of_preset} == {*PRESETS["triton"]} - {"exp_ulps", "base2"}
    promise = of_foreign(fields_of("triton,block_k=16", CASE), CASE)
    assert {*promise.of_preset} == {*PRESETS["triton"]} and not {*promise.assumed} & {"block_k", *promise.of_preset}
    assert of_dict(promise.as_dict()) == promise


def test_dtypes_of_presets_are_those_of_the_inputs() -> None:
    for dtype in ("float16", "bfloat16"):
        for preset in PRESETS:
            made = of_foreign(fields_of(preset, CASE.but(dtype=dtype)), CASE.but(dtype=dtype))
            assert (made.probs_dtype, made.out_dtype) == (dtype, dtype)
    assert fields_of({"probs_dtype": "inputs"}, CASE) == {"probs_dtype": "float32"}


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_kernel_like_flash_attention_2_keeps_its_preset(dtype: str, causal: bool) -> None:
    """Raw scores, exp2(fma(x, c, -max_scaled)), tiles from the last to the first, those without a key left out."""
    style = Style(units="raw", exp_argument="fma", probs_dtype=dtype, tile_order="descending", skips=True, block_k=16)
    made = kernel(style, {"block_k": 16, "accumulation": "nearest"})  # NumPy has no tensor cores
    said = parse("flash-attention-2") | {"accumulation": "nearest"}
    judged = diff(run(made, CASE.but(dtype=dtype, causal=causal, distribution="peaked"), contract=said))
    assert judged.verdict == "rounding" and "probs" in [stage.name for stage in judged]
    without = run(made, CASE.but(dtype=dtype, causal=causal, distribution="peaked"), contract="scores_scaled=true")
    assert diff(without).origin == "scores"  # of which somebody says what they are not


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_attention_of_torch_keeps_its_presets(dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def eager(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        scores = q @ k.transpose(-1, -2) * scale
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
        return {"scores": scores, "out": torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v}

    def sdpa(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal)

    for function, preset in ((eager, "torch-eager"), (sdpa, "torch-sdpa")):
        for distribution in ("normal", "peaked"):
            case = CASE.but(dtype=dtype, distribution=distribution)
            assert diff(run(function, case, arrays="torch", contract=preset)).verdict in ("exact", "rounding")


def test_a_declared_contract_makes_budgets_tighter() -> None:
    made = kernel(Style(), {}, ("out", "lse"))
    over = [
        diff(run(made, CASE.but(dtype="bfloat16"), **said))["lse"].worst(1)[0].over_budget
        for said in ({}, {"contract": "flash-attention-2,exp_argument=difference"})
    ]
    assert over[1] > 100 * over[0]


def test_what_the_kernel_says_otherwise_is_refused_with_both_values(tmp_path: Path) -> None:
    own = {"block_k": np.int64(16), "empty_out": math.nan, "tile_order": [0, 1, 2], "fast_math": np.bool_(False)}
    made = kernel(Style(), own)
    same = {"block_k": 16, "empty_out": math.nan, "tile_order": (0, 1, 2), "fast_math": False}
    assert run(made, CASE, contract="triton").contract.fast_math is False  # a preset is only what such kernels do
    promise = run(made, CASE, contract=same).contract
    assert promise.block_k == 16 and promise.fast_math is False and not {*own} & {*promise.assumed}
    for said, own_word, said_word in (
        ("block_k=32", "block_k=16", "block_k=32"),
        ("fast_math=true", "fast_math=false", "fast_math=true"),
        ({"tile_order": [2, 1, 0]}, "tile_order=[0,1,2]", "tile_order=[2,1,0]"),
    ):
        assert refusal(run, made, CASE, contract=said) == (
            f'attention says {own_word} in its "contract", but --contract says {said_word}: leave out the wrong one'
        )


def test_wrong_words_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def attention(q, k, v, *, scale, causal): return v\n")
    rule = "--contract takes FIELD=VALUE, @FILE or a preset; unknown preset {!r}; use one of " + ", ".join(PRESETS)
    for text, said in {
        "flash3": rule.format("flash3"),
        "triton,block_k": rule.format("block_k"),
        "=3": rule.format("=3"),
        "block_k=64,triton,block_k=32": "--contract gives block_k twice, 64 and 32",
        "base2=yes": "\"contract\" field base2 must be true or false; got 'yes'",
        "block_k=none,scores_dtype=inputs,exp_ulps=-1": (
            '"contract" field exp_ulps must be a number of at least 0; got -1'
        ),
        f"exp_ulps={10**400}": f'"contract" field exp_ulps must be a number of at least 0; got {10**400}',
        "splits=1000000000": '"contract" field splits must be a whole number from 1 to 4096; got 1000000000',
        "mma_extra_bits=-1000000": '"contract" field mma_extra_bits must be a whole number from -23 to 64; got -1000000',
    }.items():
        assert message(f"{path}:attention", "--contract", text) == said
    assert refusal(run, f"{path}:attention", contract=3) == (
        "a contract must be a dict of its fields, or text such as triton,block_k=64; got 3"
    )
    assert message("flash", "--contract", "triton") == "--contract is for your own kernels; flash is built in"


def test_dtypes_may_be_those_of_libraries() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for dtype in (np.float16, np.dtype(np.float16), torch.float16, "float16"):
        said = {"scores_dtype": dtype, "block_k": torch.tensor(64)}
        promise = of_foreign(said, CASE)
        assert (promise.scores_dtype, promise.block_k) == ("float16", 64)


@pytest.mark.campaign
def test_a_run_is_repeated_with_its_contract(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def attention(q, k, v, *, scale, causal): return v\n")
    line = invoked("diff", f"{path}:attention", "--seqlen", 4, "--contract", "triton,tile_order=[0],block_k=4").stdout
    assert line.splitlines()[-1] == (
        f"repeat: workbench diff {path}:attention --seqlen 4 --contract 'triton,tile_order=[0],block_k=4'"
    )


def test_fields_and_presets_are_listed() -> None:
    document = json.loads(contract("--json").stdout)
    assert document["schema"] == "workbench.contract/1" and [*document["presets"]] == [*PRESETS]
    fields = {one["name"]: one for one in document["fields"]}
    assert fields["accumulation"]["assumed"] == dict.fromkeys(
        ("float16", "bfloat16", "e4m3 codes", "e5m2 codes"), "any"
    ) | {"float32": "nearest"}
    lines = contract().stdout.splitlines()
    assert len([line for line in lines if line.split(":")[0] in fields]) == len(fields) > 30
    assert (
        "mma_extra_bits: bits that a tensor core keeps below float32's last bit; negative for a narrower accumulator (a whole "
        "number from -23 to 64) [0; -10 for e4m3 codes and e5m2 codes]" in lines
    )
    assert (
        "scores_dtype: dtype to which qk and scores are rounded (one of float32, float16, bfloat16) "
        "[inputs; bfloat16 for e4m3 codes and e5m2 codes]" in lines
    )
    assert f"torch-sdpa: {words(PRESETS['torch-sdpa'])}" in lines
    assert "hopper, tf32: mma_block=8,mma_extra_bits=2" in lines and len(document["tensor_cores"]) == 17
    assert {"generation": "ada", "operands": "float8", "block": 16, "extra_bits": -10} in document["tensor_cores"]
