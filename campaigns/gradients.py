"""Gradients of torch's own attention, in which nothing is wrong: what they are called, beside assert_close."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from campaigns.spread import spread
from workbench.bench.harness import gathered, torch_for
from workbench.floats import DTYPES
from workbench.operations.attention_backward import ATTENTION_BACKWARD
from workbench.operations.backward_inputs import seen
from workbench.operations.call import case_of, diff_operation
from workbench.operations.judge import OperationDiff
from workbench.refusal import Raised, Refusal, Unavailable

SCHEMA = "workbench.bench-gradients/2"
RUNS = 540
OPERATION = "attention_backward"
SDPA, FLEX = "torch:scaled_dot_product_attention", "torch:flex_attention"
VERDICTS = ("exact", "rounding", "suspicious", "untestable", "bug")
# seconds of a case, measured on 2 cores, for an estimate only; that flex compiles one on a GPU
CASE_S, COMPILE_S = 0.15, 20.0
#: draws that a backend may refuse before a case is given up
TRIES = 60
#: on a GPU one case of so many is one of flex, which compiles each
FLEX_EVERY = 20
_OF_SDPA = ("window_left", "window_right", "bias", "alibi_slopes", "mask", "seqlens_k")
_16_BITS = ("float16", "bfloat16")


class Backend(NamedTuple):
    """One backend of torch's attention, and what it takes of the domain."""

    target: str
    takes: tuple[str, ...]  #: numbers and optional inputs
    name: str = ""  #: in torch.nn.attention.SDPBackend
    dtypes: tuple[str, ...] = (*DTYPES,)
    lengths: tuple[int, ...] = (1, 7, 33, 64, 100, 150)
    dims: tuple[int, ...] = (8, 16, 32, 64)
    groups: int = 3  #: query heads of a kv head at most
    square: bool = False  #: whether a causal mask needs as many queries as keys
    keys_each: bool = False  #: whether its rows without keys are something else, which the domain does not have


_LENGTHS = (1, 7, 33, 64, 100, 128, 192, 256)
#: device -> backends by name
BACKENDS: Mapping[str, Mapping[str, Backend]] = {
    "cpu": {
        "sdpa math": Backend(SDPA, _OF_SDPA, "MATH"),
        "sdpa flash": Backend(SDPA, _OF_SDPA, "FLASH_ATTENTION"),
        "flex": Backend(FLEX, (*_OF_SDPA, "softcap", "dlse")),
    },
    "cuda": {
        "sdpa math": Backend(SDPA, _OF_SDPA, "MATH", lengths=_LENGTHS),
        "sdpa flash": Backend(SDPA, (), "FLASH_ATTENTION", _16_BITS, _LENGTHS, square=True),
        "sdpa efficient": Backend(SDPA, _OF_SDPA, "EFFICIENT_ATTENTION", lengths=_LENGTHS, groups=1, keys_each=True),
        "sdpa cudnn": Backend(SDPA, _OF_SDPA, "CUDNN_ATTENTION", _16_BITS, _LENGTHS, keys_each=True),
        "flex": Backend(FLEX, ("softcap", "alibi_slopes", "window_left"), lengths=(128, 192), dims=(32, 64), groups=2),
    },
}


def measure(runs: int = RUNS, seed: int = 0, device: str = "cpu", jobs: int = 1) -> dict[str, Any]:
    """The JSON document of one campaign, by so many `jobs` (processes): of `runs` random cases on a `device`, cpu or
    cuda, each backend's in turn, of the dtypes that it takes and all distributions, `verdicts`, the runs of which
    torch.testing.assert_close rejects a gradient (`assert_close`), the largest x of budget, and `not_right`, the cases
    of those not called right; `refused`: reason -> cases that the backend does not take, which were drawn anew, up to
    TRIES times (`given_up`). Gradients are judged on the CPU.

    Unavailable without torch, and where it finds no such device.
    """
    torch = torch_for("PyTorch's attention")
    if device not in BACKENDS:
        raise Refusal(f"device is {' or '.join(BACKENDS)}; got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise Unavailable("device=cuda: PyTorch finds no GPU here")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # each of the processes compiles
    turns = [(n, *turn(n, device)) for n in range(runs)]
    compiled = sum(backend == "flex" for _, backend, _ in turns) * COMPILE_S * (device == "cuda")
    done = gathered(
        f"judge {runs} gradients on {device}",
        (CASE_S * runs + compiled) / jobs,
        spread(partial(judged, seed=seed, device=device), turns, jobs),
        lambda done: f", {sum(one['verdict'] == 'bug' for one in done)} judged wrong",
    )
    return {
        "schema": SCHEMA,
        "runs": runs,
        "seed": seed,
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "torch": torch.__version__,
        "backends": {name: _summed([one for one in done if one["backend"] == name]) for name in BACKENDS[device]},
    }


def wrong(results: Mapping[str, Any]) -> bool:
    """Whether a right run was called a bug, or a backend took no case at all."""
    rows = results["backends"].values()
    return any(row["verdicts"]["bug"] or not row["runs"] for row in rows)


def tables(results: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """A row for each backend and one for all; a row for each run that was not called right."""
    rows = [
        {"backend": name, "runs": row["runs"], **row["verdicts"], "assert_close rejects": row["assert_close"],
         "largest x of budget": f"{row['largest']:.2g}", "refused": sum(row["refused"].values()),
         "given up": row["given_up"]}
        for name, row in results["backends"].items()
    ]  # fmt: skip
    counted = ("runs", *VERDICTS, "assert_close rejects", "refused", "given up")
    largest = max(row["largest"] for row in results["backends"].values())
    sums = {key: sum(row[key] for row in rows) for key in counted}
    total = {key: sums.get(key, f"{largest:.2g}") for key in rows[0]} | {"backend": "all"}
    missed = [
        {"backend": name, "not right": said}
        for name, row in results["backends"].items()
        for said in row["not_right"]
    ]  # fmt: skip
    return [[*rows, total], *([missed] if missed else [])]


def turn(n: int, device: str) -> tuple[str, int]:
    """The backend of a run, and how many runs of that backend come before it."""
    names = [*BACKENDS[device]]
    if device == "cpu":
        return names[n % len(names)], n // len(names)
    names.remove("flex")
    if n % FLEX_EVERY == FLEX_EVERY - 1:
        return "flex", n // FLEX_EVERY
    m = n - n // FLEX_EVERY
    return names[m % len(names)], m // len(names)


def judged(of: tuple[int, str, int], *, seed: int, device: str) -> dict[str, Any]:
    """What one run is called; an empty verdict where the backend refused all that was drawn."""
    n, name, nth = of
    backend, rng = BACKENDS[device][name], np.random.default_rng([seed, n])
    row: dict[str, Any] = {"backend": name, "verdict": "", "close": True, "largest": 0.0, "said": "", "refused": []}
    for _ in range(TRIES):
        case = drawn(backend, rng, n, nth)
        if backend.keys_each and not _each_row_sees_a_key(case):
            continue
        try:
            with _running(backend, device):
                found = diff_operation(
                    backend.target, OPERATION, gradients=True, arrays="torch", device=device, **case
                )  # fmt: skip
        except Raised as raised:
            if device == "cpu":
                raise
            row["refused"].append(_reason(raised))
            continue
        except Refusal as refusal:
            row["refused"].append(_reason(refusal))
            continue
        with np.errstate(invalid="ignore"):
            overs = [one.isolated.elements.over_budget for one in found.stages if one.isolated is not None]
        largest = max(float(np.nanmax(x, initial=0.0)) for x in overs)
        said = ""
        if found.verdict not in ("exact", "rounding"):
            said = f"{found.verdict} of {', '.join(found.origins) or 'all'}, {largest:.3g} x: {found.run.case}"
            said += "".join(f"; right with {words}" for words, _ in found.explained_by)
        return row | {"verdict": found.verdict, "close": not rejected(found), "largest": largest, "said": said}
    return row


def _reason(refusal: Refusal) -> str:
    return str(refusal).strip().splitlines()[-1][:200]


def _each_row_sees_a_key(case: Mapping[str, Any]) -> bool:
    asked = {name: case[name] for name in ("axes", "dtype", "distribution", "seed", "numbers", "optional")}
    of = case_of(SDPA, ATTENTION_BACKWARD, **asked)
    return bool(np.all(seen(of.setting, of.inputs()).any(-1)))


def _summed(done: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A backend's runs."""
    run = [one for one in done if one["verdict"]]
    verdicts = Counter(one["verdict"] for one in run)
    return {
        "runs": len(run),
        "verdicts": {name: verdicts[name] for name in VERDICTS},
        "assert_close": sum(not one["close"] for one in run),
        "largest": max((one["largest"] for one in run), default=0.0),
        "not_right": [one["said"] for one in run if one["said"]],
        "refused": dict(Counter(reason for one in done for reason in one["refused"])),
        "given_up": len(done) - len(run),
    }


def drawn(backend: Backend, rng: np.random.Generator, n: int, nth: int) -> dict[str, Any]:
    """Arguments of `diff_operation`: a random case that the backend takes."""
    group, kv_heads = int(rng.integers(1, backend.groups + 1)), int(rng.integers(1, 3))
    axes = {"batch": int(rng.integers(1, 3)), "heads": group * kv_heads, "kv_heads": kv_heads}
    axes |= {name: int(rng.choice(backend.lengths)) for name in ("queries", "keys")}
    axes |= dict.fromkeys(("dim", "dim_v"), int(rng.choice(backend.dims)))
    some = [name for name in backend.takes if rng.random() < 0.2]
    numbers: dict[str, float] = {"causal": bool(rng.integers(2))}
    if backend.square and numbers["causal"]:
        axes["keys"] = axes["queries"]
    numbers |= {name: int(rng.integers(0, 40)) for name in some if name.startswith("window")}
    numbers |= {"softcap": float(rng.choice([1.0, 20.0]))} if "softcap" in some else {}
    optional = tuple(name for name in ATTENTION_BACKWARD.optional if name in some)
    if "bias" in optional:
        axes |= {"bias_batch": int(rng.choice([1, axes["batch"]])), "bias_heads": int(rng.choice([1, axes["heads"]]))}
    dtypes, distributions = backend.dtypes, [*ATTENTION_BACKWARD.distributions]
    return {
        "axes": axes, "numbers": numbers, "optional": optional, "seed": n,
        "dtype": dtypes[nth % len(dtypes)],
        "distribution": distributions[nth // len(dtypes) % len(distributions)],
    }  # fmt: skip


def rejected(found: OperationDiff) -> bool:
    """Whether torch.testing.assert_close rejects a gradient, beside float64 rounded to its dtype."""
    import torch

    def tensor(x: np.ndarray) -> Any:
        return torch.from_numpy(x.astype(np.float32))  # which holds 16 bits

    for one in found.stages:
        assert one.propagated is not None
        actual, expected = one.propagated.actual, one.propagated.expected.astype(one.propagated.actual.dtype)
        dtype = {name: getattr(torch, name) for name in DTYPES}[found.run.case.dtype]
        try:
            torch.testing.assert_close(tensor(actual).to(dtype), tensor(expected).to(dtype))
        except AssertionError:
            return True
    return False


def _running(backend: Backend, device: str) -> AbstractContextManager[Any]:
    """With this backend of torch; flex has a backward pass on a CPU, which it refuses to run."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if backend.name:
        return sdpa_kernel(getattr(SDPBackend, backend.name))
    if device == "cpu":
        return patch("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    return nullcontext()
