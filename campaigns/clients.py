"""Right models of libraries, captured in three lines each: how many of their calls are judged, and what that costs.

Weights are random, nothing is downloaded. Prompts are padded at the left, and generate fills caches.
"""

import contextlib
import importlib
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from workbench.bench.harness import gathered, torch_for
from workbench.explore.capturing.capture import capture
from workbench.refusal import Unavailable

SCHEMA = "workbench.bench-clients/1"
DTYPES = ("float32", "bfloat16", "float16")
#: tokens of a prompt, of which the first sequence has so many of padding, and how many are generated
PROMPT, PADDING, NEW = 14, 5, 6
#: largest share of calls that may be suspicious
SUSPICIOUS = 0.02
# seconds of a capture, measured on 2 cores, for an estimate only
CAPTURE_S = 1.0

#: weights so large that scores tell keys apart
_LARGE = {"initializer_range": 0.15}
_SIZES = _LARGE | {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 100}
_ENCODER = {**_SIZES, "intermediate_size": 64, "max_position_embeddings": 64}
_DECODER = {**_ENCODER, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}
_WINDOW = {"sliding_window": 6}
_GEMMA = {**_DECODER, **_WINDOW, "query_pre_attn_scalar": 16}
_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
_EITHER = ("eager", "sdpa")
#: name of a model and of its config in transformers, its numbers, and the attn_implementations that it has
MODELS: tuple[tuple[str, str, dict[str, Any], tuple[str, ...]], ...] = (
    ("LlamaForCausalLM", "LlamaConfig", _DECODER, (*_EITHER, "flex_attention")),
    ("Gemma2ForCausalLM", "Gemma2Config", _GEMMA, ("eager",)),
    ("Gemma3ForCausalLM", "Gemma3TextConfig", _GEMMA, _EITHER),
    ("GptOssForCausalLM", "GptOssConfig", _DECODER | _WINDOW | _EXPERTS, ("eager",)),
    ("Qwen3ForCausalLM", "Qwen3Config", _DECODER, _EITHER),
    ("MistralForCausalLM", "MistralConfig", _DECODER | _WINDOW, _EITHER),
    ("GPT2LMHeadModel", "GPT2Config", _LARGE | {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 100}, _EITHER),
    ("BertModel", "BertConfig", _ENCODER, _EITHER),
    ("T5ForConditionalGeneration", "T5Config", {
        "d_model": 64, "d_kv": 16, "d_ff": 64, "num_layers": 3, "num_heads": 4, "vocab_size": 100,
        "decoder_start_token_id": 0,
    }, _EITHER),
    ("ModernBertModel", "ModernBertConfig", _ENCODER | {
        "local_attention": 6, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
        "sep_token_id": 2,
    }, _EITHER),
    ("FalconForCausalLM", "FalconConfig", _SIZES | {"alibi": False}, ("sdpa",)),
)  # fmt: skip

#: what is captured, and what calls it
Client = tuple[Any, Callable[[Any], Any], dict[str, Any]]


def measure(seed: int = 0) -> dict[str, Any]:
    """The JSON document of one campaign on the CPU.

    `rows`: of each model, attn_implementation and dtype the `calls`, and of them `judged`, `wrong`, `suspicious` and
    `untestable`, `ms a call` (of what is judged, beside the call itself) and `MB` (by how much the process grew);
    `first`: what was called wrong, `unread`: why calls were not judged. Unavailable without transformers.
    """
    torch = torch_for("PyTorch's attention")
    package("transformers").logging.set_verbosity_error()
    clients = [*_clients(torch)]
    rows = gathered(
        f"capture {len(clients)} models", CAPTURE_S * len(clients), (_row(*client, seed) for client in clients), _said
    )
    return {
        "schema": SCHEMA,
        "seed": seed,
        "versions": {name: package(name).__version__ for name in ("torch", "transformers")},
        "rows": [{key: x for key, x in row.items() if key not in ("first", "unread")} for row in rows],
        "first": [row["first"] for row in rows if row["first"]],
        "unread": [f"{row['model']}, {row['dtype']}: {why}" for row in rows for why in row["unread"]],
    }


def holds(results: dict[str, Any]) -> bool:
    """Whether every call was judged, none was called wrong, and few were suspicious."""
    rows = results["rows"]
    all_judged = all(row["calls"] > 0 and row["calls"] == row["judged"] for row in rows)
    suspicious = sum(row["suspicious"] for row in rows) / max(1, sum(row["calls"] for row in rows))
    return bool(rows) and all_judged and not any(row["wrong"] for row in rows) and suspicious <= SUSPICIOUS


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    beside = [{what: line} for what in ("first", "unread") for line in results[what]]
    return [results["rows"], *([line] for line in beside)]


def _said(done: list[dict[str, Any]]) -> str:
    return f", {sum(row['wrong'] for row in done)} calls judged wrong"


def package(name: str) -> Any:
    """A module of the extra `clients`. Unavailable without it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Unavailable(f"{name} is not installed: pip install -e '.[clients]' -c constraints.txt") from None


def _clients(torch: Any) -> Iterator[tuple[str, str, str, Callable[[], Client]]]:
    """Name, implementation and dtype of each, and what makes it."""
    for dtype in DTYPES:
        for name, config, numbers, implementations in MODELS:
            for implementation in implementations:
                yield name, implementation, dtype, partial(_model, name, config, numbers, implementation, dtype)
        yield "x-transformers Decoder", "sdpa", dtype, partial(_x_transformers, torch, dtype)
        yield "nn.MultiheadAttention", "sdpa", dtype, partial(_multihead, torch, dtype)
        yield "a function of NumPy", "spec", dtype, partial(_of_numpy, dtype)
        with contextlib.suppress(ImportError):
            yield "jax.nn.dot_product_attention", "", dtype, partial(_of_jax, importlib.import_module("jax"), dtype)


def _row(model: str, implementation: str, dtype: str, make: Callable[[], Client], seed: int) -> dict[str, Any]:
    """What the capture of one says."""
    import torch

    torch.manual_seed(seed)
    what, run, options = make()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"), torch.no_grad():
        before, start = _resident("VmRSS"), time.perf_counter()
        # flex_attention is compiled otherwise, which takes a minute
        with torch.compiler.set_stance("force_eager"), capture(what, Path(folder), **options) as c:
            run(c)
        found, taken, grown = c.report, time.perf_counter() - start, _resident("VmHWM") - before
    untestable = sum(found.unread.values()) + sum(found.dropped.values())
    return {
        "model": model, "attention": implementation, "dtype": dtype, "calls": found.calls, "judged": found.judged,
        "wrong": found.wrong, "suspicious": found.doubted, "untestable": untestable,
        "ms a call": round(1e3 * found.host_s / max(1, found.sampled), 1), "s": round(taken, 2),
        "MB": round(max(grown, 0.0), 1),
        "first": "" if found.kept is None else f"{model}, {implementation}, {dtype}: {found.kept}",
        "unread": [f"{n} x {why}" for why, n in {**found.unread, **found.dropped}.items()],
    }  # fmt: skip


def _resident(what: str) -> float:
    """Megabytes of this process: VmRSS now, or VmHWM, the most since VmRSS was asked; 0 where no one tells."""
    try:
        if what == "VmRSS":
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{what}:"))
    except (OSError, StopIteration):
        return 0.0


def _model(name: str, config: str, numbers: dict[str, Any], implementation: str, dtype: str) -> Client:
    """A model of transformers with random weights, run forward and, where it can, by generate."""
    import torch

    transformers = package("transformers")
    made = getattr(transformers, config)(**numbers)
    made._attn_implementation = implementation
    model = getattr(transformers, name)(made).eval().to(getattr(torch, dtype))
    ids = torch.randint(3, 100, (2, PROMPT))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    given["attention_mask"][0, :PADDING] = 0

    def run(_: Any) -> None:
        model(**given, **({"decoder_input_ids": ids} if made.is_encoder_decoder else {}))
        if hasattr(model, "generate"):
            model.generate(**given, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0)

    return model, run, {}


def _x_transformers(torch: Any, dtype: str) -> Client:
    library = package("x_transformers")
    layers = library.Decoder(dim=64, depth=3, heads=4, attn_dim_head=16, attn_flash=True)
    model = library.TransformerWrapper(num_tokens=100, max_seq_len=64, attn_layers=layers).eval()
    return model.to(getattr(torch, dtype)), lambda _: model(torch.randint(0, 100, (2, PROMPT))), {}


def _multihead(torch: Any, dtype: str) -> Client:
    model = torch.nn.MultiheadAttention(64, 4, batch_first=True, dtype=getattr(torch, dtype))
    x = torch.randn(2, PROMPT, 64, dtype=getattr(torch, dtype))
    return model, lambda _: model(x, x, x, need_weights=False), {}


def _of_numpy(dtype: str) -> Client:
    """Attention in operations of NumPy, which returns its weights, too."""
    import ml_dtypes

    def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scores = q.astype(np.float32) @ k.astype(np.float32).mT / np.float32(4)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return (weights @ v.astype(np.float32)).astype(q.dtype), weights

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 4, PROMPT, 16)).astype(kind)
    return attend, lambda c: c.function(q, k, v), {"spec": lambda q, k, v: {"q": q, "k": k, "v": v}}


def _of_jax(jax: Any, dtype: str) -> Client:
    q, k, v = jax.random.normal(jax.random.key(0), (3, 2, PROMPT, 4, 16), dtype=dtype)
    attend = jax.nn.dot_product_attention
    return attend, lambda _: attend(q, k, v, is_causal=True), {}
