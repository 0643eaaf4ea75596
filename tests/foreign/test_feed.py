"""Known-good stages put into a run: what reads them is judged, what makes them is left out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.refusals import invoked as workbench
from workbench import Case, Refusal, diff, run
from workbench.case.options import Options
from workbench.foreign.feed import parse
from workbench.report.command import diff_command

CASE = Case(batch=2, heads=4, kv_heads=2, seqlen=100, head_dim=32, block_q=16, block_k=16, causal=True, splits=3)
PARTIALS = ("partial_O", "partial_max", "partial_sum")
FAULTS = ["partial-no-masked-tile-guard", "reduce-double-counts-sum"]


def merge(partial_O: Any, partial_max: Any, partial_sum: Any, double: bool = False) -> dict[str, np.ndarray]:  # noqa: N803
    """The reduce of Split-K in float32."""
    largest = partial_max.max(axis=2)
    with np.errstate(invalid="ignore"):
        weight = np.where(partial_max == -np.inf, 0, np.exp(partial_max - largest[:, :, None])).astype(np.float32)
    weight = weight * partial_sum if double else weight
    total = (weight * partial_sum).sum(axis=2)
    with np.errstate(invalid="ignore", divide="ignore"):
        out = (weight[..., None] * partial_O).sum(axis=2) / total[..., None]
    return {
        "merge_weight": weight,
        "merge_sum": total,
        "out": np.where(total[..., None] == 0, 0, out).astype(np.float32),
    }


def reduce(partial_O: Any, partial_max: Any, partial_sum: Any, *, scale: float, causal: bool) -> Any:  # noqa: N803
    return merge(partial_O, partial_max, partial_sum)


def faulty_reduce(partial_O: Any, partial_max: Any, partial_sum: Any, **_: Any) -> Any:  # noqa: N803
    return merge(partial_O, partial_max, partial_sum, double=True)


def test_the_reduce_alone_on_reference_partials() -> None:
    """Both kernels are wrong: with known-good partials only the reduce is named."""
    case = Case(heads=2, seqlen_q=128, seqlen_k=96, head_dim=32, block_q=16, block_k=16, causal=True)
    alone = diff(run("split_k", case, faults=FAULTS, backend="emulator"))
    assert alone.origin != "merge_weight" and "merge_weight" in alone.origins
    feed = dict.fromkeys(PARTIALS, "reference")
    judged = diff(run("split_k", case, faults=FAULTS, feed=feed, backend="emulator"))
    assert judged.origins == ("merge_weight",)
    assert (
        judged.trace.put_in == PARTIALS
        and "qk" not in judged.trace.stages
        and judged["partial_O"].reason == "it was fed into the run"
    )
    assert diff(run("split_k", case, faults=FAULTS[:1], feed=feed, backend="emulator")).verdict == "rounding"


def test_the_command_names_the_reduce_alone() -> None:
    words = ["diff", "split_k", "--fault", FAULTS[0], "--fault", FAULTS[1], "--heads", "2", "--seqlen", "64"]
    done = workbench(*words, "--feed", "partial_O,partial_max,partial_sum=reference")
    text = " ".join(done.output.split())
    assert done.exit_code == 1 and "first wrong stage: merge_weight" in text and "also wrong" not in text
    assert "fed: partial_O, partial_max, partial_sum" in text
    assert "--feed partial_O,partial_max,partial_sum=reference" in text.partition("repeat:")[2]


@pytest.mark.campaign
def test_one_stage_of_several_may_be_fed() -> None:
    """What is not fed is still made, and judged."""
    made = run(
        "split_k", CASE, faults=["reduce-double-counts-sum"], feed={"partial_sum": "reference"}, backend="emulator"
    )
    judged = diff(made)
    assert (
        judged.origins == ("merge_weight",) and judged["acc"].verdict == "rounding" and made.put_in == ("partial_sum",)
    )
    assert diff(run("split_k", CASE, feed={"partial_sum": "reference"}, backend="emulator")).verdict == "rounding"


@pytest.mark.campaign
def test_attention_on_reference_codes() -> None:
    case = Case(heads=2, seqlen=64)
    codes = [f"{kind}_{x}" for x in "qkv" for kind in ("codes", "scale")]
    whole = diff(run("fp8", case, faults=["v-tile-row-shift", "quantiser-amax-without-abs"], backend="emulator"))
    assert whole.origin is not None and whole.origin.startswith("scale")
    fed = run("fp8", case, faults=["v-tile-row-shift"], feed=dict.fromkeys(codes, "reference"), backend="emulator")
    judged = diff(fed)
    assert judged.origins == ("dequant_v",) and set(fed.put_in) == set(codes)
    assert judged.loss is not None and np.abs(judged.loss.inputs["v"]).max() > 0
    one = diff(run("fp8", case, feed={"codes_k": "reference", "scale_k": "reference"}, backend="emulator"))
    assert (
        one.verdict == "rounding"
        and one["codes_q"].verdict == "exact"
        and one["codes_k"].reason == "it was fed into the run"
    )


def test_arrays_and_files_are_fed(tmp_path: Path) -> None:
    good = run("split_k", CASE, backend="emulator")
    arrays = {name: good.stages[name] for name in PARTIALS}
    save_file(arrays, tmp_path / "partials.safetensors")
    np.savez(tmp_path / "sum.npz", partial_sum=2 * arrays["partial_sum"])
    from_file = run(
        "split_k", CASE, feed=dict.fromkeys(PARTIALS, str(tmp_path / "partials.safetensors")), backend="emulator"
    )
    assert from_file.stages["out"].tobytes() == good.stages["out"].tobytes() and diff(from_file).verdict == "rounding"
    doubled = run("split_k", CASE, feed=arrays | {"partial_sum": tmp_path / "sum.npz"}, backend="emulator")
    np.testing.assert_allclose(doubled.stages["out"], good.stages["out"] / 2, rtol=1e-6)
    judged = diff(doubled)  # the reduce is right on what it read; against q, k and v it is a victim
    assert judged.origins == () and "out" in judged.victims
    fed = run("split_k", CASE, feed=arrays, backend="emulator")
    assert fed.called_with == Options(feed=dict.fromkeys(arrays, "")) and diff_command(diff(fed)) == ""


@pytest.mark.parametrize("double", [False, True])
def test_a_foreign_reduce_is_tested_alone(double: bool) -> None:
    """Its parameters have the names of the stages that it reads."""
    judged = diff(run(faulty_reduce if double else reduce, CASE))
    assert judged.trace.put_in == ("partial_max", "partial_sum", "partial_O") or set(judged.trace.put_in) == set(
        PARTIALS
    )
    assert judged.trace.case.splits == 3 and judged["partial_O"].verdict == "not judged"
    assert judged.origin == ("merge_weight" if double else None)
    assert judged.verdict == ("bug" if double else "rounding")


def test_a_foreign_quantiser_is_tested_alone() -> None:
    from workbench.cuda.quantize import quantize

    def quantiser(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        made = {x: quantize(array, "e4m3") for x, array in (("q", q), ("k", k), ("v", v))}
        stages = {f"codes_{x}": one.codes for x, one in made.items()} | {
            f"scale_{x}": one.scale for x, one in made.items()
        }
        stages["codes_v"][0, 0, 3, 4] ^= 1
        return stages

    judged = diff(run(quantiser, Case(heads=2, seqlen=32, codes="e4m3")))
    assert judged.origins == ("codes_v",) and judged["codes_v"].worst(1)[0].index == {"b": 0, "h": 0, "k": 3, "d": 4}


def test_foreign_stages_in_the_middle_read_what_they_name() -> None:
    def product(probs_cast: Any, v: Any, row_sum: Any, *, scale: float, causal: bool) -> Any:
        acc = probs_cast @ np.repeat(v, 2, 1)
        return {"out": acc / row_sum[..., -1:], "contract": {"row_sum_of_cast": False}}

    case = Case(heads=4, kv_heads=2, seqlen=64, block_k=64)
    judged = diff(run(product, case))
    assert judged.verdict in ("rounding", "exact") and set(judged.trace.put_in) == {"probs_cast", "row_sum"}
    wrong = diff(run(product, case, feed={"row_sum": np.ones((1, 4, 64, 1), np.float32)}))
    assert wrong.origins == () and wrong.victims == ("out",)


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(Refusal) as refused:
        run(*arguments, **options)
    return str(refused.value)


def test_what_cannot_be_fed_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", partial_O=np.zeros(3, np.float32))
    good: dict[str, Any] = dict.fromkeys(PARTIALS, "reference")
    for target, feed, message in [
        ("flash", {"acc": "reference"}, "kernel flash can be fed no stages; got acc"),
        ("split_k", {"qk": "reference"}, "kernel split_k can be fed partial_O, partial_max, partial_sum; got qk"),
        ("fp8", {"codes_q": "reference"}, "kernel fp8: quantised codes and scales come in pairs; codes_q is alone"),
        ("split_k", {"partial_max": str(tmp_path / "x.npz")}, f"{tmp_path}/x.npz holds no partial_max; it holds partial_O"),
        (
            "split_k",
            {"partial_O": tmp_path / "x.npz"},
            "split_k: partial_O has axes [b h s q d] and must have shape [2, 4, 3, 100, 32] for this case; got [3]",
        ),
        (lambda q, k, v, **_: q, good, "<lambda> has no parameter named after a stage, such as partial_O, so nothing can be fed"),
        (reduce, {"qk": "reference"}, "reduce reads partial_O, partial_max, partial_sum; qk cannot be fed"),
    ]:  # fmt: skip
        case = CASE.but(splits=None, block_k=None) if target in ("flash", "fp8") else CASE
        options = {"backend": "emulator"} if isinstance(target, str) else {}
        assert refusal(target, case, feed=feed, **options) == message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["partial_O"], "--feed takes STAGE[,STAGE...]=reference or =FILE; got 'partial_O'"),
        (["a,=reference"], "--feed takes STAGE[,STAGE...]=reference or =FILE; got 'a,=reference'"),
        (["a=x.npz", "b,a=reference"], "a stage may be fed only once; got a twice"),
    ],
)
def test_words_that_feed_nothing_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(Refusal) as refused:
        parse(words)
    assert str(refused.value) == message
    assert parse(["a,b=reference", "c=x.npz"]) == {"a": "reference", "b": "reference", "c": "x.npz"}


def test_tiles_and_splits_are_for_functions_that_read_stages(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def attention(q, k, v, *, scale, causal):\n    return q\n\n\n"
        "def reduce(partial_O, partial_max, partial_sum, *, scale, causal):\n    return partial_O[:, :, 0]\n"
    )
    done = workbench("diff", f"{tmp_path}/mine.py:attention", "--splits", "3")
    assert str(done.exception) == (
        f"--splits is for built-in kernels; declare what {tmp_path}/mine.py:attention does with --contract splits=3, or "
        'splits in the "contract" that it returns'
    )
    read = workbench("diff", f"{tmp_path}/mine.py:reduce", "--splits", "3", "--block-k", "32", "--json")
    assert read.exit_code == 1 and '"origin": "out"' in read.stdout and '"splits": 3' in read.stdout
