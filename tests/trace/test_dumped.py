"""Dumps of other programs, written here by their public formats, read by a mapping."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from workbench import Refusal, compare_runs, diff
from workbench.cli.main import commands
from workbench.trace.dumped import load_dump
from workbench.trace.plain import boxed

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.nn.functional as F  # noqa: E402 - needs torch
from torch.utils._debug_mode import DebugMode  # noqa: E402

HEADS, KV_HEADS, DIM, TOKENS = 4, 2, 16, 24
FILE = "exp_1/step={call}___rank=0___dump_index=*___name=NAME___layer_id=3.pt:value"
SGLANG = {
    "target": "sglang",
    "layout": "sx",
    "tensors": {x: FILE.replace("NAME", f"attn_{x}") for x in ("q", "k", "v", "out")},
    "case": {"heads": HEADS, "kv_heads": KV_HEADS, "causal": True},
    "contract": {"probs_dtype": "bfloat16"},
}
DEBUG_OP = "aten._scaled_dot_product_flash_attention_for_cpu.default"
DEBUG = {
    "records": "records.pt",
    "op": DEBUG_OP,
    "tensors": {"q": "args.0", "k": "args.1", "v": "args.2", "out": "output.0", "lse": "output.1"},
    "case": {"causal": True, "causal_alignment": "top-left"},
    "contract": {"probs_dtype": "float32"},
}


def tensors(seed: int, dtype: Any = torch.bfloat16) -> tuple[Any, ...]:
    made = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(1, h, TOKENS, DIM, generator=made).to(dtype) for h in (HEADS, KV_HEADS, KV_HEADS))


def sglang(folder: Path, scale_of: Callable[[int], float | None] = lambda step: None) -> Path:
    """What sglang.srt.debug_utils.dumper leaves of two steps: `___`-joined tags, {"value": ..., "meta": ...}."""
    index = 0
    for step in range(2):
        q, k, v = tensors(step)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=scale_of(step))
        for name, x in (("attn_q", q), ("attn_k", k), ("attn_v", v), ("attn_out", out)):
            for layer in (2, 3):
                index += 1
                tags = {"step": step, "rank": 0, "dump_index": index, "name": name, "layer_id": layer}
                path = folder / "exp_1" / ("___".join(f"{key}={value}" for key, value in tags.items()) + ".pt")
                path.parent.mkdir(exist_ok=True)
                value = x[0].transpose(0, 1).flatten(1).contiguous()  # [tokens, heads * dim]
                torch.save({"value": value, "meta": tags}, path)
    return folder


def test_a_dump_of_sglang_is_judged_call_by_call(tmp_path: Path) -> None:
    calls = load_dump(sglang(tmp_path), SGLANG)
    assert [*calls] == [0, 1]
    q, k, _ = tensors(1)
    assert np.array_equal(calls[1].inputs["q"].astype(np.float32), q.float().numpy())
    assert np.array_equal(calls[1].inputs["k"].astype(np.float32), k.float().numpy())
    assert [diff(trace).verdict for trace in calls.values()] == ["rounding", "rounding"]


def test_the_wrong_step_of_a_dump_is_found(tmp_path: Path) -> None:
    calls = load_dump(sglang(tmp_path, lambda step: 0.4 if step == 1 else None), SGLANG)
    assert [diff(trace).verdict for trace in calls.values()] == ["rounding", "bug"]


@pytest.mark.parametrize("scale", [None, 0.4])
def test_records_of_debug_mode_are_judged(tmp_path: Path, scale: float | None) -> None:
    q, k, v = tensors(0, torch.float32)
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    with torch.no_grad(), DebugMode(store_original_args=True) as mode, DebugMode.record_outputs():
        F.relu(q)
        for _ in range(2):
            F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    records = [
        {"op": str(call.op), "args": list(call.args), "kwargs": dict(call.kwargs), "output": call.record["output"]}
        for call in mode.operators
        if hasattr(call, "op") and call.record is not None
    ]
    torch.save(records, tmp_path / "records.pt")
    calls = load_dump(tmp_path, DEBUG)
    assert [diff(trace).verdict for trace in calls.values()] == ["rounding" if scale is None else "bug"] * 2
    assert set(calls[0].stages) == {"out", "lse"}


@pytest.mark.usefixtures("without_causes")
def test_records_of_debug_mode_are_replayed_by_the_command_line_and_held_against_another_run(tmp_path: Path) -> None:
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(
        f'records = "records.pt"\nop = "{DEBUG_OP}"\n[tensors]\n'
        + "".join(f'{x} = "{at}"\n' for x, at in DEBUG["tensors"].items())
        + '[case]\ncausal = true\ncausal_alignment = "top-left"\n'
    )
    sides = {}
    for name, scale in (("right", None), ("wrong", 0.4)):
        folder = tmp_path / name
        folder.mkdir()
        test_records_of_debug_mode_are_judged(folder, scale)
        shown = CliRunner().invoke(commands, ["diff", str(folder), "--mapping", str(mapping), "--json"])
        verdicts = [run["verdict"] for run in json.loads(shown.stdout)["runs"]]
        assert verdicts == ["rounding" if scale is None else "bug"] * 2 and shown.exit_code == (scale is not None)
        sides[name] = load_dump(folder, mapping)
    found = compare_runs(sides["right"], sides["wrong"])
    assert found.verdict == "bug" and [pair.wrong for pair in found.pairs] == [("B",)] * 2


def test_a_plain_folder_needs_no_numbers(tmp_path: Path) -> None:
    q, k, v = tensors(0, torch.float32)
    out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    for name, x in {"q": q, "k": k, "v": v, "out": out}.items():
        torch.save(x, tmp_path / f"layer7.{name}.pt")
    calls = load_dump(tmp_path, {"tensors": {x: f"layer7.{x}.pt" for x in ("q", "k", "v", "out")}})
    assert [*calls] == [0] and diff(calls[0]).verdict == "rounding"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layuot": "bhsd"}, "layuot='bhsd' is not allowed in a mapping"),
        ({"layout": "bhsdd"}, "layout lists the axes"),
        ({"case": {"casual": True}}, "no field casual"),
        ({"tensors": {"q": "a", "k": "b", "out": "c"}}, "lacks v"),
        ({"tensors": {x: SGLANG["tensors"][x] for x in ("q", "k", "v")}}, "holds only inputs"),
        ({"tensors": {**SGLANG["tensors"], "w": "w.pt"}}, "got w"),
        ({"tensors": {**SGLANG["tensors"], "q": "none_{call}.pt"}}, "no file matches 'none_{call}.pt'"),
        ({"tensors": {**SGLANG["tensors"], "q": FILE.replace("NAME", "*")}}, "has two files for q"),
        ({"tensors": {**SGLANG["tensors"], "q": FILE.replace("NAME", "attn_q")[:-6]}}, "name one after a colon"),
        (
            {"tensors": {**SGLANG["tensors"], "q": FILE.replace("{call}", "0").replace("NAME", "attn_q")}},
            "call 1 has no q",
        ),
        ({"case": {"causal": True}}, "combines heads and dims"),
        ({"records": "records.pt"}, "give records and op together"),
    ],
)
def test_a_mapping_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(Refusal) as refused:
        load_dump(sglang(tmp_path), {**SGLANG, **change})
    assert said in str(refused.value)


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "shd", "hsd", "sx", "bsx", "sd"])
def test_layouts_come_back_as_boxes(layout: str) -> None:
    sizes = {"b": 1 if "b" not in layout else 2, "h": 1 if layout == "sd" else 3, "s": 5, "d": 4}
    whole = np.arange(np.prod([*sizes.values()])).reshape([*sizes.values()])
    spelled = layout.replace("x", "hd")
    laid = whole.reshape([sizes[axis] for axis in "bhsd" if axis in spelled])
    order = [axis for axis in "bhsd" if axis in spelled]
    laid = laid.transpose([order.index(axis) for axis in spelled])
    if "x" in layout:
        laid = laid.reshape([sizes.get(axis, 12) for axis in layout])
    assert np.array_equal(boxed(laid, layout, sizes["h"], "it"), whole)


def written(folder: Path) -> Path:
    """The mapping of the dump of SGLang as a file."""
    lines = [f'target = "sglang"\nlayout = "{SGLANG["layout"]}"', "[tensors]"]
    lines += [f'{name} = "{pattern}"' for name, pattern in SGLANG["tensors"].items()]
    lines += ["[case]", f"heads = {HEADS}", f"kv_heads = {KV_HEADS}", "causal = true"]
    path = folder / "mapping.toml"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.usefixtures("without_causes")
def test_the_command_line_judges_every_call_and_repeats_itself(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    dump.mkdir()
    mapping = written(tmp_path)
    sglang(dump, lambda step: 0.4 if step == 1 else None)
    asked = ["diff", str(dump), "--mapping", str(mapping)]
    shown = CliRunner().invoke(commands, [*asked, "--json"])
    told = json.loads(shown.stdout)
    assert shown.exit_code == 1 and [run["verdict"] for run in told["runs"]] == ["rounding", "bug"]
    for path in dump.glob("exp_1/step=0*"):
        path.unlink()
    shown = CliRunner().invoke(commands, asked)
    assert shown.exit_code == 1 and f"workbench diff {dump} --mapping {mapping}" in shown.stdout, shown.output


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--causal", "no"], r"\[case\] has causal=True; got causal=False"),
        (["--heads", "2"], r"\[case\] has heads=4; got heads=2"),
        (["--against", "flash"], "--against compares two"),
        (["--runs", "2"], "got --runs"),
    ],
)
def test_what_a_mapping_says_is_said_no_other_way(more: list[str], said: str, tmp_path: Path) -> None:
    asked = ["diff", str(sglang(tmp_path)), "--mapping", str(written(tmp_path)), *more]
    with pytest.raises(Refusal, match=said):
        CliRunner().invoke(commands, asked, catch_exceptions=False)
