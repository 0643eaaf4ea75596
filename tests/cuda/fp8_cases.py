"""The small cases of `fp8` that tests of its codes share."""

from workbench import Case, run

#: grouped heads, ragged tiles, ragged blocks, rows without keys; small tiles, since each build is seconds
CASE = Case(batch=2, heads=2, kv_heads=1, seqlen_q=19, seqlen_k=17, head_dim=80, causal=True, block_q=16, block_k=16)
SHAPES = (
    dict(),
    dict(seqlen_q=1, seqlen_k=33, distribution="outlier-channels"),
    dict(distribution="tiny", quantiser_scale="static"),
    dict(distribution="zero-head", heads=2, kv_heads=2),
)


def fp8_run(case, **options):
    return run("fp8", case, **({"backend": "emulator"} | options))
