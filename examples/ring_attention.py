"""Ring attention over torch.distributed, each rank of which leaves what it got.

Every rank holds a part of the queries and of the keys; its queries stay, keys and values go round the ring (Liu et al.
2023, arXiv 2310.01889). On the CPU with gloo, or with NCCL where there are as many GPUs as ranks:

python examples/ring_attention.py run --ranks 4
workbench diff run

`--order zigzag` deals the sequence from both ends. Two faults: `--fault base2`, the last rank merges natural lses as if
they were of base 2; `--fault own-keys`, each rank passes its own keys on in the place of those that it received.
"""

import argparse
import math
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from workbench import Case
from workbench.case.ranks import dealt, indices
from workbench.trace.ranks import save_rank

FAULTS = ("base2", "own-keys")


def partial(q, k, v, visible, scale):
    """out and lse of some queries on some keys; 0 and -inf where a query sees none of them."""
    scores = (q.float() @ k.float().mT * scale).masked_fill(~visible, -math.inf)
    lse = scores.logsumexp(-1)
    probs = torch.exp(scores - lse.masked_fill(lse == -math.inf, 0.0)[..., None])
    return probs @ v.float(), lse


def merge(outs, lses, exp=torch.exp, log=torch.log):
    """out and lse of all keys, of those of each rank, outs [ranks, batch, heads, queries, dim]; and how they arise."""
    top = lses.amax(0)
    weight = exp(lses - top.masked_fill(top == -math.inf, 0.0))
    total = weight.sum(0)
    out = (weight[..., None] * outs).sum(0) / total.masked_fill(total == 0, 1.0)[..., None]
    return {"merge_max": top, "merge_weight": weight, "merge_sum": total, "out": out, "lse": top + log(total)}


def passed_on(tensors, rank, ranks):
    """Those of the rank before, for those that go to the next one."""
    received = [torch.empty_like(x) for x in tensors]
    sends = [dist.P2POp(dist.isend, x, (rank + 1) % ranks) for x in tensors]
    receives = [dist.P2POp(dist.irecv, x, (rank - 1) % ranks) for x in received]
    for request in dist.batch_isend_irecv(sends + receives):
        request.wait()
    return received


def ring(rank, ranks, case, order, fault, folder, device):
    """One rank: its part of the case, once round the ring, its merge, what it leaves."""
    queries, keys = ([indices(x) for x in dealt(n, ranks, order)] for n in (case.seqlen_q, case.seqlen_k))
    q, k, v = (torch.from_numpy(x).to(device) for x in case.inputs())
    q, own = q[:, :, queries[rank]], (k[:, :, keys[rank]], v[:, :, keys[rank]])
    mask = torch.from_numpy(case.mask()).to(device)[queries[rank]]
    outs, lses, block = [None] * ranks, [None] * ranks, [x.contiguous() for x in own]
    for step in range(ranks):
        source = (rank - step) % ranks
        outs[source], lses[source] = partial(q, *block, mask[:, keys[source]], case.scale)
        if step < ranks - 1:
            block = passed_on([x.contiguous() for x in own] if fault == "own-keys" else block, rank, ranks)
    wrong = fault == "base2" and rank == ranks - 1
    results = merge(torch.stack(outs), torch.stack(lses), *((torch.exp2, torch.log2) if wrong else ()))
    inputs = dict(zip("qkv", (q, *own), strict=True))
    results["out"] = results["out"].to(q.dtype)
    save_rank(
        folder, case, rank, ranks, inputs=inputs, outs=outs, lses=lses, results=results, order=order, target="ring"
    )


def started(rank, ranks, store, *what):
    """A process of its own for each rank."""
    gpus = torch.cuda.device_count() >= ranks
    device = f"cuda:{rank}" if gpus else "cpu"
    if gpus:
        torch.cuda.set_device(rank)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if gpus else "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    try:
        ring(rank, ranks, *what, device)
    finally:
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description="Ring attention; `workbench diff FOLDER` judges it.")
    parser.add_argument("folder")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seqlen", type=int, default=128, help="a multiple of the ranks; zigzag: of twice as many")
    parser.add_argument("--order", default="contiguous")
    parser.add_argument("--fault", choices=FAULTS)
    chosen = parser.parse_args()
    case = Case(heads=2, seqlen=chosen.seqlen, head_dim=32, causal=True)
    with tempfile.NamedTemporaryFile() as store:
        what = (chosen.ranks, f"{store.name}.ring", case, chosen.order, chosen.fault, chosen.folder)
        method = "spawn" if torch.cuda.is_available() else "fork"
        mp.start_processes(started, what, nprocs=chosen.ranks, start_method=method)


if __name__ == "__main__":
    main()
