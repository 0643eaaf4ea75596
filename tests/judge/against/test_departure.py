"""Where the inputs of two runs of a small decoder part by more than rounding, and what that looks like."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.report.page.test_page import text_of
from workbench import compare_runs, save
from workbench.cli.main import commands
from workbench.expectation.observed import Observed
from workbench.judge.against.asked import apart, in_one_form
from workbench.judge.against.departure import Distance, departure, first_departure
from workbench.judge.against.question import question

torch = pytest.importorskip("torch", reason="torch is not installed")
from tests.judge.against.decoder import Decoder, fused, plain, prompt, traces  # noqa: E402 - needs torch

MODEL = Decoder(layers=3)
BF16 = replace(MODEL, dtype=torch.bfloat16)
LARGE = replace(MODEL, layers=6, weights_of=lambda w: 3 * w)
PROMPT = [prompt(16)]
STEPS = [prompt(16), prompt(1, seed=1), prompt(1, seed=2)]  # calls 0-2, 3-5 and 6-8


def other_token(place: int) -> list[Any]:
    tokens = prompt(16)
    tokens[0, place] += 1 - 2 * (tokens[0, place] > 40)
    return [tokens]


def one_early(layer: int, step: int, k: Any, v: Any) -> tuple[Any, Any]:
    """The newest key lies in the slot before its own."""
    if (layer, step) != (1, 2):
        return k, v
    return torch.cat([k[:, :, :-2], k[:, :, -1:], torch.zeros_like(k[:, :, -1:])], 2), v


def changed_row(layer: int, step: int, k: Any, v: Any) -> tuple[Any, Any]:
    """Row 5 of v changes once it is kept."""
    return k, torch.cat([v[:, :, :5], v[:, :, 5:6].flip(-1), v[:, :, 6:]], 2) if (layer, step) == (2, 1) else v


def lost_row(layer: int, step: int, k: Any, v: Any) -> tuple[Any, Any]:
    return torch.cat([k[:, :, :7], 0 * k[:, :, 7:8], k[:, :, 8:]], 2) if step else k, v


def faded_row(layer: int, step: int, k: Any, v: Any) -> tuple[Any, Any]:
    """Row 3 of v is a tenth smaller from the first step on, which is less than what rounding makes of a large model."""
    return k, torch.cat([v[:, :, :3], v[:, :, 3:4] * 0.9, v[:, :, 4:]], 2) if (layer, step) == (5, 1) else v


def in_8_bits(layer: int, step: int, k: Any, v: Any) -> tuple[Any, Any]:
    return k.to(torch.float8_e4m3fn).to(k.dtype), v.to(torch.float8_e4m3fn).to(v.dtype)


def off_in_row_7(layer: int, x: Any) -> Any:
    return torch.cat([x[:, :7], x[:, 7:8].flip(-1), x[:, 8:]], 1) if layer == 1 else x


#: what B does otherwise -> call where it shows first, its inputs, and the rows and words
FAULTS: dict[str, tuple[Any, Any, Any, int, str, str]] = {
    "eps, bfloat16": (BF16, replace(BF16, eps=1e-5), PROMPT, 0, "q k v", "times as large in A on average"),
    "row": (MODEL, replace(MODEL, cached=changed_row), STEPS, 5, "v",
            "in row 5 only: look between call 4 and this call: the cache: in A, row 5 of v still has its value from call "
            "2; in B it does not"),
    "hidden": (MODEL, replace(MODEL, behind=off_in_row_7), PROMPT, 2, "q k v",
               "in row 7 only: look between call 1 and this call: the computation on that token"),
    "base": (MODEL, replace(MODEL, base=5e5), PROMPT, 0, "q k", "in rows 1-15 only: look before it: the rotation (RoPE)"),
    "base, bfloat16": (BF16, replace(MODEL, base=5e5), PROMPT, 0, "q k", "before any attention ran in rows 1-15 only"),
    "position": (MODEL, replace(MODEL, first=1), PROMPT, 0, "q k", "the rotation (RoPE): its base, positions or pairs"),
    "eps": (MODEL, replace(MODEL, eps=1e-5), PROMPT, 0, "q k v", "the preceding norm (its eps), or a scale"),
    "eps of large tokens": (replace(MODEL, std=1.0), replace(MODEL, std=1.0, eps=1e-5), PROMPT, 0, "q k v", "its eps"),
    "weights": (MODEL, replace(MODEL, seed=1), PROMPT, 0, "q k v", "nothing in common: different weights"),
    "slot": (MODEL, replace(MODEL, cached=one_early), STEPS, 7, "k", "row 16 of k in B equals row 17 in A"),
    "row, bfloat16": (BF16, replace(MODEL, cached=lost_row), STEPS, 3, "k", "row 7 of k is 0 in B"),
    "faded": (replace(LARGE, dtype=torch.bfloat16), replace(LARGE, cached=faded_row), STEPS[:2], 11, "v",
              "in row 3 only: look between call 10 and this call: the cache: in A, row 3 of v still has its value from "
              "call 5; in B it does not"),
    "fp8": (MODEL, replace(MODEL, cached=in_8_bits), PROMPT, 0, "k v", "k and v of B contain only float8_e4m3fn values"),
    "activation": (MODEL, replace(MODEL, activation=torch.nn.functional.gelu), PROMPT, 1, "q k v",
                   "look between call 0 and this call"),
}  # fmt: skip


@pytest.mark.campaign(but=4)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_before_attention_is_where_inputs_part(fault: str) -> None:
    a, b, steps, call, inputs, words = FAULTS[fault]
    found = compare_runs(traces(a, steps), traces(b, steps))
    assert found.verdict == "differs" and found.first is not None and found.departed is not None
    assert (found.first.call, " ".join(found.departed.inputs)) == (call, inputs), str(found)
    assert words in str(found) and "is rounding" not in str(found)


def test_another_token_is_its_row(tmp_path: Path) -> None:
    found = compare_runs(traces(MODEL, PROMPT), traces(MODEL, other_token(9)))
    document = json.loads(json.dumps(found.as_dict()))
    assert document["first"] == document["departed"]["call"] == 0 and document["departed"]["behind"] is None
    assert document["calls"][0]["apart"]["inputs"]["q"] > 1 > document["calls"][0]["own"]
    found.save_html(tmp_path / "two.html")
    assert "in row 9 only" in text_of((tmp_path / "two.html").read_text())
    assert found.verdict == "differs" and found.departed.rows == {"q": "9", "k": "9", "v": "9"}
    assert "q, k and v of call 0 differ by" in str(found) and "in row 9 only: look before it: a different token" in str(
        found
    )
    steps = [*STEPS[:2], prompt(1, seed=5)]
    late = compare_runs(traces(MODEL, STEPS), traces(MODEL, steps))
    assert late.departed.call == 6 and late.departed.rows == {"q": "17", "k": "17", "v": "17"}


def in_its_dtype(x: Any, eps: float) -> Any:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize(
    ("a", "b", "attend", "steps"),
    [
        (MODEL, MODEL, plain, STEPS),
        (BF16, MODEL, plain, STEPS),
        (BF16, replace(MODEL, dtype=torch.float16), fused, PROMPT),
        (BF16, replace(BF16, norm=in_its_dtype), fused, PROMPT),
        (replace(LARGE, dtype=torch.bfloat16), LARGE, fused, PROMPT),
        (replace(MODEL, std=1.0), replace(BF16, std=1.0), fused, PROMPT),
    ],
    ids=["kernels", "bfloat16", "16 bits", "norm", "large", "tokens"],
)
def test_rounding_alone_is_no_departure(a: Decoder, b: Decoder, attend: Any, steps: list[Any]) -> None:
    found = compare_runs(traces(a, steps), traces(b, steps, attend))
    assert found.verdict == "rounding" and found.departed is None, str(found)
    assert "rounding in earlier layers" in str(found)


def distances(*largest: float, out: float = 1e-7) -> list[Distance]:
    return [Distance({"q": x, "k": 0.0, "v": 0.0}, out, 1e-6, 1.0, (4, 4)) for x in largest]


def test_what_grows_evenly_is_rounding_and_a_jump_is_not() -> None:
    doubling = [1e-6 * 2.0**n for n in range(12)]
    assert first_departure(range(12), distances(*doubling), 12) is None
    jump = [*doubling[:6], *(100 * x for x in doubling[6:])]
    place, allowed = first_departure(range(12), distances(*jump), 12)
    assert place == 6 and allowed == pytest.approx(4 * 2 * doubling[5])
    assert first_departure(range(12), distances(*jump), 6) is None, "what is behind a wrong call is not asked after"


def test_calls_that_were_not_sampled_may_have_rounded_too() -> None:
    found = distances(3e-6, 4e-6)
    assert first_departure([0, 1], found, 2) == (0, 1e-6)
    assert first_departure([5, 6], found, 2) is None


def test_a_sequence_of_the_batch_alone_is_named() -> None:
    """Left padding whose positions nobody counted."""
    tokens = prompt(12, batch=3)
    other = tokens.clone()
    other[1] = prompt(12, seed=3)[0]
    found = compare_runs(traces(MODEL, [tokens]), traces(MODEL, [other]))
    assert found.departed.batches == (1,) and "of sequence 1 of the batch: look before it" in str(found)


def test_the_command_line_exits_with_1_where_inputs_differ(tmp_path: Path) -> None:
    folders = []
    for name, model in (("a", MODEL), ("b", replace(MODEL, base=5e5))):
        for call, trace in traces(model, [prompt(6)]).items():
            save(trace, tmp_path / name / "calls" / f"{call:06d}.safetensors")
        folders.append(str(tmp_path / name))
    shown = CliRunner().invoke(commands, ["compare-runs", *folders])
    assert shown.exit_code == 1 and "q and k of call 0 differ by" in shown.stdout
    assert CliRunner().invoke(commands, ["compare-runs", folders[0], folders[0]]).exit_code == 0


def test_nan_that_hidden_rows_make_of_out_is_no_rounding() -> None:
    """0 times NaN is NaN: right of what was read, and nothing that the other side has."""
    calls = {0: traces(MODEL, [prompt(6)])[0]}
    trace = calls[0]
    inputs = {
        name: np.concatenate([x, np.zeros_like(x[:, :, :1])], 2) if name in "kv" else x
        for name, x in trace.inputs.items()
    }
    inputs["mask"] = np.concatenate([trace.inputs["mask"], np.zeros_like(trace.inputs["mask"][..., :1])], -1)
    padded = replace(trace, case=trace.case.but(seqlen_k=7), inputs=inputs)
    v = inputs["v"].copy()
    v[:, :, 6] = np.nan
    out = np.full_like(trace.stages["out"], np.nan)
    poisoned = replace(padded, inputs=inputs | {"v": v}, stages={"out": out})
    found = compare_runs({0: padded}, {0: poisoned})
    assert found.verdict in ("bug", "differs") and found.first.call == 0
    assert "is rounding" not in str(found)


def test_inputs_that_are_all_but_too_far_apart_are_named_too() -> None:
    """A change barely above rounding puts one of q, k and v alone over the limit."""
    a, b = (traces(model, PROMPT)[0] for model in (MODEL, replace(MODEL, seed=1)))
    mixed = replace(a, inputs=a.inputs | {x: a.inputs[x] + 0.02 * b.inputs[x] for x in "qkv"})
    one, other = in_one_form(*(question(Observed(trace)) for trace in (a, mixed)), "call 1")
    far = {name: float(apart(one, other, name).max()) for name in "qkv"}
    found = departure((1, 0), False, one, other, max(far.values()) * 0.99, [lambda name, place: None] * 2)
    assert list(found.inputs) == ["q", "k", "v"] and not found.batches and not any(found.rows.values())
