"""What a capture costs a model on a GPU, and which backends of torch's attention keep bits that depend on nothing
beside a row: in under three minutes, with `python -m campaigns capture --gpu`.
"""

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench import Case
from workbench.arrays import home
from workbench.bench.harness import torch_for
from workbench.explore.capturing.capture import capture
from workbench.explore.laws.every import LAWS, held_to, subject
from workbench.refusal import Refusal

SCHEMA = "workbench.bench-capture-gpu/1"
BACKENDS = {
    "cuda": ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"),
    "cpu": ("FLASH_ATTENTION", "MATH"),
}
#: steps that follow each other with the capture or without: what is judged meanwhile is waited for behind them
BLOCK = 10
#: sequences, heads, rows and dims of what the table of backends calls, keys of its decoding step, and its sequences
SIZES, CACHE, CROWD = (8, 16, 1024, 64), 4096, 64
#: the case on which what moved the order is looked for, which takes a core a few seconds
SMALL = Case(heads=2, seqlen=512, head_dim=64, dtype="bfloat16", causal=True)


def measure(
    steps: int = 100, layers: int = 12, width: int = 1024, heads: int = 16, tokens: int = 1024, batch: int = 8,
    sizes: tuple[int, ...] = SIZES, cache: int = CACHE, crowd: int = CROWD, small: Case = SMALL, device: str = "cuda",
) -> dict[str, Any]:  # fmt: skip
    """The JSON document: of `overhead` a row for inference and one for training, and of `backends` a row each, whose
    cells are "equal", how many elements differ, or why it was not run. Unavailable without torch or its GPU.
    """
    torch = torch_for("PyTorch's attention")
    home("torch", device)
    with warnings.catch_warnings(action="ignore"):
        model = Model(torch, layers, width, heads, device)
        x = torch.randn(batch, tokens, width, device=device, dtype=torch.bfloat16)
        overhead = [_overhead(torch, model, x, steps, training) for training in (False, True)]
        del model, x
        backends = [_backend(torch, name, sizes, cache, crowd, small, device) for name in BACKENDS[device]]
    return {
        "schema": SCHEMA, "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "overhead": overhead, "backends": backends,
    }  # fmt: skip


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    return [results["overhead"], results["backends"]]


class Model:
    """A transformer whose attention is given to each step."""

    def __init__(self, torch: Any, layers: int, width: int, heads: int, device: str) -> None:
        made = torch.Generator(device).manual_seed(0)
        shapes = {"qkv": (width, 3 * width), "proj": (width, width)}
        shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
        self._torch, self._width, self._heads = torch, width, heads
        self.layers = [
            {
                name: (torch.randn(shape, generator=made, device=device) * shape[0] ** -0.5).bfloat16().requires_grad_()
                for name, shape in shapes.items()
            }
            for _ in range(layers)
        ]

    def __call__(self, x: Any, attend: Callable[..., Any]) -> Any:
        """The last hidden states [batch, token, width]."""
        functional = self._torch.nn.functional
        for layer in self.layers:
            qkv = functional.rms_norm(x, (self._width,)) @ layer["qkv"]
            q, k, v = qkv.unflatten(-1, (3, self._heads, -1)).permute(2, 0, 3, 1, 4)
            x = x + attend(q, k, v, is_causal=True).transpose(1, 2).flatten(2) @ layer["proj"]
            x = x + functional.silu(functional.rms_norm(x, (self._width,)) @ layer["up"]) @ layer["down"]
        return x


def _overhead(torch: Any, model: Model, x: Any, steps: int, training: bool) -> dict[str, Any]:
    """Times of steps without and with a capture of 1 % of the calls, in blocks after each other: of steps that are each
    waited for, and of a block that is waited for once, as a model trains.
    """
    plain = torch.nn.functional.scaled_dot_product_attention

    def step(attend: Callable[..., Any]) -> None:
        if training:
            model(x, attend).float().square().mean().backward()
            for layer in model.layers:
                for w in layer.values():
                    w.grad = None
        else:
            with torch.no_grad():
                model(x, attend)

    def timed(attend: Callable[..., Any], count: int) -> float:
        """Seconds of one of `count` steps."""
        _wait(torch, x)
        start = time.perf_counter()
        for _ in range(count):
            step(attend)
        _wait(torch, x)
        return (time.perf_counter() - start) / count

    each: dict[bool, list[float]] = {False: [], True: []}
    blocks: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        warm = capture(plain, Path(folder, "warm"))
        with warm:  # a judgement, too, loads what it needs once
            for attend in (plain, warm.function) * 2:
                timed(attend, 1)
        count = min(BLOCK, steps)
        with capture(plain, Path(folder, "seen"), sample=0.01) as c:
            for _ in range(-(-steps // BLOCK)):
                for watched in (False, True):
                    attend = c.function if watched else plain
                    each[watched] += [timed(attend, 1) for _ in range(count)]
                    _ = c.report  # waits for what is judged, which is not to slow the steps without it
                    blocks[watched].append(timed(attend, count))
                    _ = c.report
        found = c.report
    ms = {on: 1e3 * statistics.median(t) for on, t in each.items()}
    of_block = {on: 1e3 * statistics.fmean(t) for on, t in blocks.items()}
    return {
        "step": "training" if training else "inference", "calls": found.calls, "judged": found.judged + found.gradients,
        "wrong": found.wrong + found.wrong_gradients, "ms without": ms[False], "ms with": ms[True],
        "% of the median": 100 * (ms[True] / ms[False] - 1),
        "% of the mean": 100 * (statistics.fmean(each[True]) / statistics.fmean(each[False]) - 1),
        "ms in a row": of_block[False], "% in a row": 100 * (of_block[True] / of_block[False] - 1),
        "host ms a sampled call": 1e3 * found.host_s / max(1, found.sampled),
        "judging ms": 1e3 * found.judging_s / max(1, found.judged + found.gradients),
        "not judged": sum(found.unread.values()) + sum(found.dropped.values()),
    }  # fmt: skip


def _wait(torch: Any, x: Any) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def _backend(
    torch: Any, name: str, sizes: tuple[int, ...], cache: int, crowd: int, small: Case, device: str
) -> dict[str, Any]:
    """Which bits of one backend are the same."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    sdpa, made = torch.nn.functional.scaled_dot_product_attention, torch.Generator(device).manual_seed(0)
    batch, heads, rows, dim = sizes

    def drawn(*shape: int) -> Any:
        return torch.randn(shape, generator=made, device=device, dtype=torch.float32).bfloat16()

    def called(q: Any, k: Any, v: Any, **how: Any) -> Any:
        with torch.no_grad(), sdpa_kernel([getattr(SDPBackend, name)]):
            return sdpa(q, k, v, **how)

    q, k, v = (drawn(*sizes) for _ in "qkv")
    token, (keys, values) = drawn(crowd, heads, 1, dim), (drawn(crowd, heads, cache, dim) for _ in "kv")
    half = rows // 2

    def whole() -> Any:
        return called(q, k, v, is_causal=True)

    def chunk() -> Any:
        """The second half of the rows with all keys."""
        from torch.nn.attention.bias import causal_lower_right

        seen = torch.ones(rows - half, rows, dtype=torch.bool, device=device).tril(half)
        try:
            return called(q[:, :, half:], k, v, attn_mask=seen)
        except RuntimeError:  # flash takes no mask, but this one
            return called(q[:, :, half:], k, v, attn_mask=causal_lower_right(rows - half, rows))

    def decoded(row: int) -> Any:
        return called(q[:, :, row : row + 1], k[:, :, : row + 1], v[:, :, : row + 1])

    def replayed() -> Any:
        whole()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            out = whole()
        graph.replay()
        torch.cuda.synchronize()
        return out.clone()  # its memory is the graph's

    pairs: dict[str, Callable[[], list[tuple[Any, Any]]]] = {
        "runs": lambda: [(whole(), whole())],
        "batch": lambda: [(whole()[:1], called(q[:1], k[:1], v[:1], is_causal=True))],
        "head": lambda: [(whole()[:, :1], called(q[:, :1], k[:, :1], v[:, :1], is_causal=True))],
        "splits: decoding in a batch": lambda: [(called(token, keys, values)[:1],
                                                 called(token[:1], keys[:1], values[:1]))],
        "first chunk": lambda: [(whole()[:, :, :half], called(*(x[:, :, :half] for x in (q, k, v)), is_causal=True))],
        "second chunk": lambda: [(whole()[:, :, half:], chunk())],
        "decode": lambda: [(whole()[:, :, row : row + 1], decoded(row)) for row in (1, half, rows - 1)],
    }  # fmt: skip
    if device == "cuda":
        pairs["graph replay"] = lambda: [(whole(), replayed())]
    found = {"backend": name, **{what: _same(torch, of) for what, of in pairs.items()}}
    return found | {"why decode differs": _moved(called, small, device)}


def _same(torch: Any, pairs: Callable[[], list[tuple[Any, Any]]]) -> str:
    """Whether both of all pairs are the same bit for bit, in words."""
    try:
        made = pairs()
        differing = sum(int((x.view(torch.int16) != y.contiguous().view(torch.int16)).sum()) for x, y in made)
    except (RuntimeError, ValueError) as error:
        return f"refused: {str(error).splitlines()[0][:60]}"
    size = sum(x.numel() for x, _ in made)
    return "equal" if differing == 0 and size > 0 else f"{100 * differing / size:.2g} % differ"


def _moved(called: Callable[..., Any], small: Case, device: str) -> str:
    """What the law of decoding says of the order of a backend's keys, on a small case."""

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        if causal and q.shape[2] == k.shape[2]:
            return called(q, k, v, is_causal=True, scale=scale)
        return called(q, k, v, scale=scale)  # a token sees all keys that it is given

    try:
        of = subject(attention, small, invariant=True, arrays="torch", device=device)
        found = held_to(LAWS["decode-is-prefill"], of)
    except (RuntimeError, Refusal) as error:  # Refusal: of the function, which raised
        return f"refused: {str(error).strip().splitlines()[-1][:60]}"
    if found.broke is None:
        return found.lacking or "equal"
    return found.broke.words.rpartition("; ")[2]
