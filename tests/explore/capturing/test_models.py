"""Calls of attention inside models: what is read of them, and how they are named."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import screens
from workbench import Refusal, capture, diff, load
from workbench.explore.capturing.interface import Interface, asked_of
from workbench.explore.capturing.judging import FIRST
from workbench.explore.capturing.layers import Layers

torch = pytest.importorskip("torch", reason="torch is not installed")
from tests.explore.capturing import llama  # noqa: E402 - needs torch
from tests.explore.capturing.llama import Llama, transformers  # noqa: E402, F401 - a fixture

SEEN = torch.ones(6, 6, dtype=torch.bool).tril() & (torch.arange(6) > 0)
SEEN[0, 0] = True


def tokens(count: int = 6) -> Any:
    return torch.randn(2, count, llama.WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("how", ["eager", "sdpa", "causal"])
def test_three_lines_judge_every_call_of_a_model(how: str, transformers: Any, tmp_path: Path) -> None:  # noqa: F811
    torch.manual_seed(0)
    model = Llama("eager" if how == "eager" else "sdpa")
    mask = {"eager": torch.where(SEEN, 0.0, -torch.inf)[None, None], "sdpa": SEEN[None, None], "causal": None}[how]
    right = vars(llama.AttentionInterface)["get_interface"]
    with capture(model, tmp_path) as c, torch.no_grad():
        model(tokens(), mask)
        model(tokens(1))
    assert (c.report.calls, c.report.judged, c.report.wrong, c.report.unread) == (4, 4, 0, {})
    assert c.report.verdict == "rounding" and c.report.worst.where.startswith("layer ")
    assert vars(llama.AttentionInterface)["get_interface"] is right
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_wrong_layer_is_named_by_layer_and_step(transformers: Any, tmp_path: Path) -> None:  # noqa: F811
    passes = iter(range(100))

    def attend(module: Any, *args: Any, scaling: float, **kwargs: Any) -> Any:
        wrong = module.layer_idx == 1 and next(passes) == 2
        return llama.sdpa(module, *args, scaling=scaling * (1.3 if wrong else 1), **kwargs)

    transformers.functions["mine"], transformers.masks["mine"] = attend, transformers.masks["sdpa"]
    model = Llama("mine")
    with capture(model, tmp_path) as c, torch.no_grad():
        for _ in range(4):
            model(tokens())
    assert (c.report.judged, c.report.wrong, c.report.verdict) == (8, 1, "bug")
    assert (c.report.kept.where, c.report.kept.call, c.report.kept.stage) == ("layer 1, step 2", 5, "out")
    assert "first wrong: call 5, layer 1, step 2, bug at out" in str(c.report)
    assert load(tmp_path / FIRST).notes[0] == "call 5, layer 1, step 2: all rows"
    assert diff(load(tmp_path / FIRST)).verdict == "bug"


def test_another_model_passes_by_and_an_error_leaves_nothing_behind(
    transformers: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    model, other = Llama(), Llama()
    right = vars(llama.AttentionInterface)["get_interface"]
    with pytest.raises(ZeroDivisionError), capture(model, tmp_path) as c, torch.no_grad():
        other(tokens())
        model(tokens())
        raise ZeroDivisionError
    assert c.report.calls == c.report.judged == 2
    assert vars(llama.AttentionInterface)["get_interface"] is right
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_function_without_a_mask_is_said_to_be_told_no_padding(transformers: Any, tmp_path: Path) -> None:  # noqa: F811
    transformers.functions["mine"] = llama.sdpa
    model = Llama("mine")
    with capture(model, tmp_path) as c, torch.no_grad():
        model(tokens())
    assert c.report.judged == 2 and "transformers makes no mask for 'mine'" in str(c.report)


def test_gradients_of_a_model_are_judged(transformers: Any, tmp_path: Path) -> None:  # noqa: F811
    model = Llama("sdpa", layers=1)
    with capture(model, tmp_path) as c:
        model(tokens()).square().sum().backward()
    assert (c.report.judged, c.report.gradients, c.report.wrong_gradients) == (1, 1, 0)


Q, K = torch.zeros(2, 4, 3, 8), torch.zeros(2, 2, 5, 8)
BIAS = torch.randn(1, 4, 3, 5)
PADDED = torch.tensor([[False, False, True, True, True], [True] * 5])
#: what is asked, and how: the fields of the case, and the inputs beside q, k and v
ASKED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "full": ({}, {}, {}),
    "scaled": ({"scaling": 0.3}, {"scale": 0.3}, {}),
    "capped": ({"softcap": 50.0}, {"softcap": 50.0}, {}),
    "sinks": ({"s_aux": torch.tensor([0.0, 1.0, 2.0, 3.0])}, {"sinks": (0.0, 1.0, 2.0, 3.0)}, {}),
    "a mask": ({"attention_mask": BIAS > 0}, {}, {"mask": BIAS > 0}),
    "an added mask": ({"attention_mask": BIAS}, {}, {"bias": BIAS}),
    "a mask of a longer cache": ({"attention_mask": torch.cat([BIAS, BIAS], -1)}, {}, {"bias": BIAS}),
    "a bias": ({"position_bias": BIAS}, {}, {"bias": BIAS}),
    "a bias and a mask": ({"position_bias": BIAS, "attention_mask": BIAS > 0}, {}, {"bias": BIAS, "mask": BIAS > 0}),
    "a bias and an added mask": ({"position_bias": BIAS, "attention_mask": BIAS}, {}, {"bias": BIAS + BIAS}),
    "padding": (
        {"attention_mask": PADDED}, {"causal": True}, {"mask": PADDED[:, None, None, :]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ASKED)
def test_what_a_call_asks_is_read_from_its_arguments(what: str) -> None:
    given, fields, inputs = ASKED[what]
    masks = "flash_attention_mask" if what == "padding" else "eager_mask"
    found = Interface(llama.eager, what != "padding", masks, "layer 3, step 0")
    call = asked_of(found, SimpleNamespace(is_causal=True), Q, K, K, **given)
    assert (call.fields, call.where, call.out) == (fields, "layer 3, step 0", "bshd")
    assert {*call.inputs} == {"q", "k", "v", *inputs}
    assert all(torch.equal(call.inputs[name], x) for name, x in inputs.items())


#: name of the function that made no mask, queries, is_causal of the module, its window -> what is hidden
HIDDEN: list[tuple[str, int, bool, int | None, dict[str, Any]]] = [
    ("sdpa_mask", 5, True, None, {"causal": True}),
    ("sdpa_mask", 3, True, None, {"causal": True, "causal_alignment": "top-left"}),
    ("sdpa_mask", 3, False, None, {}),
    ("sdpa_mask", 1, True, 4, {}),
    ("", 3, True, None, {"causal": True}),
    ("", 3, True, 4, {"causal": True, "window": (3, 0)}),
    ("", 3, True, 5, {"causal": True}),
    ("", 1, True, 4, {"window": (3, 0)}),
    ("flash_attention_mask", 5, False, 2, {"window": (1, 1)}),
]


@pytest.mark.parametrize(("masks", "queries", "causal", "window", "fields"), HIDDEN)
def test_what_is_hidden_without_a_mask(
    masks: str, queries: int, causal: bool, window: int | None, fields: dict[str, Any]
) -> None:
    module = SimpleNamespace(is_causal=causal)
    q = torch.zeros(2, 4, queries, 8)
    found = Interface(llama.sdpa, False, masks, "")
    assert asked_of(found, module, q, K, K, sliding_window=window).fields == fields
    assert asked_of(found, SimpleNamespace(), q, K, K, is_causal=causal, sliding_window=window).fields == fields


def test_what_cannot_be_judged_is_refused_with_what_it_has() -> None:
    found, module = Interface(llama.sdpa, False, "sdpa_mask", ""), SimpleNamespace()
    with pytest.raises(Refusal, match=r"dropout of 0.1: model.eval\(\) turns it off"):
        asked_of(found, module, Q, K, K, dropout=0.1)
    with pytest.raises(Refusal, match="unsupported argument sinks"):  # of each query, as Inkling has them
        asked_of(found, module, Q, K, K, sinks=torch.zeros(2, 4, 3, 1))
    asked_of(found, module, Q, K, K, position_ids=torch.arange(3)[None], temperature=torch.ones(1))
    with pytest.raises(Refusal, match="unsupported argument cu_seq_lens_q"):
        asked_of(found, module, Q, K, K, cu_seq_lens_q=torch.tensor([0, 3]))
    asked_of(found, module, Q, K, K, BIAS > 0, cu_seq_lens_q=torch.tensor([0, 3]))  # which the mask has
    with pytest.raises(Refusal, match="an attention_mask with 3 axes"):
        asked_of(found, module, Q, K, K, BIAS[0])


def test_sinks_are_read_again_where_they_were_written() -> None:
    module = torch.nn.Module()
    module.sinks = torch.nn.Parameter(torch.zeros(4))
    found = Interface(llama.eager, True, "eager_mask", "")
    assert asked_of(found, module, Q, K, K).fields["sinks"] == (0.0,) * 4
    with torch.no_grad():
        module.sinks += 2
    assert asked_of(found, module, Q, K, K, s_aux=module.sinks).fields["sinks"] == (2.0,) * 4


def test_layers_that_share_an_index_are_named_by_their_place() -> None:
    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = Llama(), Llama(layers=3)

    model = Both()
    layers = Layers(model)
    where = []
    for module in (model.encoder.layers[0], model.decoder.layers[2], model.encoder.layers[0], model.encoder):
        where.append(layers.begin(module))
        layers.end()
    # a part that is called alone is in its next step where it calls again
    assert where == ["layer encoder.layers.0, step 0", "layer 2, step 0", "layer encoder.layers.0, step 1",
                     "layer encoder, step 1"]  # fmt: skip


def test_torchs_attention_inside_any_module_is_watched(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), Sdpa())
    with capture(model, tmp_path) as c, torch.no_grad():
        model(tokens())
        torch.nn.functional.scaled_dot_product_attention(*torch.zeros(3, 1, 1, 2, 8))  # of another
    assert (c.report.calls, c.report.judged, c.report.wrong) == (1, 1, 0)
    assert c.report.worst.named == "call 0, layer 1, step 0" and c.report.target == "Sequential"


def test_a_module_that_computes_attention_itself_is_told(tmp_path: Path) -> None:
    heads = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    x = tokens()
    with capture(heads, tmp_path / "a") as c:
        heads(x, x, x)
    assert c.report.verdict == "untestable" and "pass need_weights=False" in str(c.report)
    with capture(heads, tmp_path / "b") as c, torch.no_grad():
        heads(x, x, x, need_weights=False)
    assert (c.report.judged, c.report.wrong, c.report.unread) == (1, 0, {})
    with capture(torch.nn.Linear(32, 32), tmp_path / "c") as c:
        pass
    assert "capture that function: capture(function, folder, spec=...)" in str(c.report)


class Sdpa(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        q = x.unflatten(-1, (4, 8)).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2)


def test_a_model_of_an_older_transformers_is_refused(
    transformers: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules["transformers.modeling_utils"], "AttentionInterface", dict)
    with pytest.raises(Refusal, match="needs transformers 5"), capture(Llama(), tmp_path):
        pass


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore")  # of the library
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_llama_of_transformers_is_judged(implementation: str, tmp_path: Path) -> None:
    library = pytest.importorskip("transformers", reason="an extra, clients")
    config = library.LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=50,
    )  # fmt: skip
    config._attn_implementation = implementation
    model = library.LlamaForCausalLM(config).eval()
    ids = torch.randint(3, 50, (2, 9))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    with capture(model, tmp_path) as c:
        model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=3, min_new_tokens=3, pad_token_id=0)
    assert (c.report.calls, c.report.judged, c.report.wrong, c.report.doubted) == (6, 6, 0, 0)
    assert c.report.worst.where.startswith("layer ")


@pytest.mark.campaign
def test_the_page_on_captures_shows_what_is_printed(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="an extra, clients")
    page = (screens.ROOT / "docs/how-to/capturing.md").read_text()
    program = screens.ROOT / "examples/in_a_model.py"
    shown = page.split("```\n")[2]
    assert shown.startswith("LlamaForCausalLM: ")
    done = subprocess.run([sys.executable, "-W", "ignore", str(program)], cwd=tmp_path, capture_output=True, text=True)
    lines = zip(done.stdout.splitlines(), shown.splitlines(), strict=False)
    assert all(line.startswith(one) for line, one in lines), done.stdout + done.stderr  # other causes may fit as well
