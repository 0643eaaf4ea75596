"""Two runs of a model, training and inference, and `workbench.compare_runs`, which says where they diverge.

python examples/two_engines.py wrong     # a layer of inference has another scale
python examples/two_engines.py narrow    # inference casts probs to bfloat16
"""

import shutil
import sys

import torch
import torch.nn.functional as F

import workbench

WRONG = sys.argv[1:] == ["wrong"]
torch.manual_seed(0)
weights = [[torch.randn(64, 192) / 6, torch.randn(64, 64) / 6] for _ in range(4)]
tokens = torch.randn(1, 48, 64)


def attend(q, k, v, scale=0.25, probs_dtype=torch.float32):
    hidden = torch.ones(48, 48, dtype=torch.bool).triu(1)
    scores = (q @ k.mT * scale).masked_fill(hidden, -torch.inf)
    probs = torch.exp(scores - scores.amax(-1, keepdim=True))
    return probs.to(probs_dtype).float() @ v / probs.sum(-1, keepdim=True)


def model(attention, x):
    for layer, (qkv, out) in enumerate(weights):
        q, k, v = (F.rms_norm(x, (64,)) @ qkv).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        x = x + attention(layer)(q, k, v).transpose(1, 2).flatten(2) @ out
    return x


def captured(folder, attention, **options):
    def asked(layer, q, k, v):
        return {"q": q, "k": k, "v": v, "causal": True, "scale": 0.25}

    shutil.rmtree(folder, ignore_errors=True)
    with workbench.capture(attention, folder, spec=asked, keep="all", **options) as c:
        model(lambda layer: lambda *qkv: c.function(layer, *qkv), tokens)


def inference(layer, *qkv):
    if WRONG:
        return attend(*qkv, scale=0.3 if layer == 2 else 0.25)
    return attend(*qkv, probs_dtype=torch.bfloat16)


captured("training", lambda layer, *qkv: attend(*qkv))
captured("inference", inference, contract=None if WRONG else "probs_dtype=bfloat16")
found = workbench.compare_runs("training", "inference")
print(found)
sys.exit(found.verdict == "bug")
