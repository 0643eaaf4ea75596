"""Attention of PyTorch's own operations on a GPU: products in TF32, and its two functions with what a case has."""

import numpy as np
import pytest

from campaigns import features
from workbench import Case, diff, run
from workbench.case.tensor_cores import generation_of
from workbench.cuda.gpu import gpu

pytestmark = pytest.mark.gpu

# of one query, and of keys whose number is odd, cuBLAS makes no use of TF32
CASES = [
    Case(batch=2, heads=4, kv_heads=2, seqlen_q=70, seqlen_k=200, head_dim=64, causal=True),
    Case(batch=1, heads=3, seqlen=512, head_dim=128, seed=1),
]


@pytest.fixture
def torch():
    found = pytest.importorskip("torch")
    before = found.backends.cuda.matmul.allow_tf32
    yield found
    found.backends.cuda.matmul.allow_tf32 = before


def attention(torch):
    """Products by cuBLAS, softmax at once."""

    def of(q, k, v, *, scale, causal):
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        qk = q @ k.mT
        hidden = torch.ones_like(qk, dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2])
        scores = (qk * scale).masked_fill(hidden, -torch.inf) if causal else qk * scale
        return {"qk": qk, "scores": scores, "out": scores.softmax(-1) @ v, "lse": scores.logsumexp(-1)}

    return of


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("scale", [1, 30])  # scores of the size of 1, and far apart
def test_products_in_tf32_are_right_as_declared_and_wrong_where_not(torch, case, scale):
    generation = generation_of(gpu().compute_capability)
    inputs = {name: np.float32(scale if name == "q" else 1) * x for name, x in zip("qkv", case.inputs(), strict=True)}
    options = dict(inputs=inputs, arrays="torch", device="cuda")
    declared = {"input_precision": "tf32", "tensor_core": generation}
    torch.backends.cuda.matmul.allow_tf32 = True
    in_tf32 = attention(torch)
    assert diff(run(in_tf32, case, contract=declared, **options)).verdict == "rounding"
    found = diff(run(in_tf32, case, **options))
    assert found.verdict == "bug" and found.origin == "qk"
    torch.backends.cuda.matmul.allow_tf32 = False
    assert diff(run(attention(torch), case, **options)).verdict == "rounding"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler, within itself
@pytest.mark.parametrize("target", ["torch:scaled_dot_product_attention", "torch:flex_attention"])
def test_functions_of_torch_are_not_called_wrong(target):
    asked = ("alibi", "head_dim_v", "shared_kv", "padded", "window", "softcap", "mask_mod", "score_mod")
    found = features.measure(cases=2, targets=(target,), features=asked, device="cuda", seed=5)
    assert found["wrong"] == [] and sum(row["runs"] for row in found["features"]) >= 8
