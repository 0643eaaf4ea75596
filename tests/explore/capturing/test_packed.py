"""Calls of packed sequences, watched: of FlashAttention's varlen function, written in torch here, and by a spec."""

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench import capture, diff, load
from workbench.explore.capturing.judging import BACKWARD, FIRST
from workbench.explore.capturing.packed import _places
from workbench.operations.stored import load as load_run

torch = pytest.importorskip("torch", reason="torch is not installed")

sdpa = torch.nn.functional.scaled_dot_product_attention


def varlen(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: Any = None, causal: bool = False, window_size: Any = (-1, -1),
    softcap: float = 0.0, alibi_slopes: Any = None, deterministic: bool = False, return_attn_probs: bool = False,
    block_table: Any = None, *, seqused_k: Any = None, wrong: Any = None,
) -> Any:  # fmt: skip
    """As FlashAttention-2's, [rows, heads, dim]; the sequence `wrong` does not see its first key. Of k and v in pages
    seqused_k may tell the lengths, as in FlashAttention-3's and vLLM's.
    """
    if block_table is not None:
        used = torch.diff(cu_seqlens_k) if seqused_k is None else seqused_k
        k, v = (torch.cat([x[t].flatten(0, 1)[:n] for t, n in zip(block_table, used, strict=True)]) for x in (k, v))
        cu_seqlens_k = torch.cat([torch.zeros(1, dtype=torch.int32), used.cumsum(0)])
    outs, lses = [], []
    for b in range(len(cu_seqlens_q) - 1):
        rows, keys = (slice(int(x[b]), int(x[b + 1])) for x in (cu_seqlens_q, cu_seqlens_k))
        q_, k_, v_ = q[rows].transpose(0, 1), k[keys].transpose(0, 1), v[keys].transpose(0, 1)
        k_, v_ = (x.repeat_interleave(len(q_) // len(k_), 0) for x in (k_, v_))
        seen = torch.ones(q_.shape[1], k_.shape[1], dtype=torch.bool)
        seen = seen.tril(k_.shape[1] - q_.shape[1]) if causal else seen
        if b == wrong:
            seen = seen & (torch.arange(k_.shape[1]) > 0)
        scores = (q_ @ k_.mT * (softmax_scale or q.shape[-1] ** -0.5)).masked_fill(~seen, -torch.inf)
        outs.append((torch.softmax(scores.float(), -1).to(v.dtype) @ v_).transpose(0, 1))
        lses.append(torch.logsumexp(scores.float(), -1))
    return (torch.cat(outs), torch.cat(lses, -1), None) if return_attn_probs else torch.cat(outs)


def with_kvcache(
    q: Any, k_cache: Any, v_cache: Any, k: Any = None, v: Any = None, rotary_cos: Any = None,
    cache_seqlens: Any = None, block_table: Any = None, softmax_scale: Any = None, causal: bool = False,
    window_size: Any = (-1, -1), softcap: float = 0.0, rotary_interleaved: bool = True, num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:  # fmt: skip
    """As FlashAttention-2's, without new keys."""
    count, rows = q.shape[:2]
    table = torch.arange(count)[:, None] if block_table is None else block_table
    used = torch.as_tensor(k_cache.shape[1] if cache_seqlens is None else cache_seqlens).expand(count)
    starts = torch.arange(0, (count + 1) * rows, rows)
    out, lse, _ = varlen(
        q.flatten(0, 1), k_cache, v_cache, starts, None, rows, 0, softmax_scale=softmax_scale, causal=causal,
        block_table=table, seqused_k=used, return_attn_probs=True,
    )  # fmt: skip
    out, lse = out.unflatten(0, (count, rows)), lse.unflatten(-1, (count, rows)).transpose(0, 1)
    return (out, lse) if return_softmax_lse else out


@pytest.fixture
def flash_attn(monkeypatch: pytest.MonkeyPatch) -> Any:
    package = types.ModuleType("flash_attn")
    package.flash_attn_varlen_func = varlen  # type: ignore[attr-defined]
    package.flash_attn_with_kvcache = with_kvcache  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    return package


def drawn(lengths_q: list[int], lengths_k: list[int], seed: int = 0) -> dict[str, Any]:
    made = torch.Generator().manual_seed(seed)
    cu = [torch.tensor([0, *np.cumsum(x)], dtype=torch.int32) for x in (lengths_q, lengths_k)]
    q = torch.randn(sum(lengths_q), 4, 16, generator=made)
    k, v = (torch.randn(sum(lengths_k), 2, 16, generator=made) for _ in "kv")
    return {
        "q": q, "k": k, "v": v, "cu_seqlens_q": cu[0], "cu_seqlens_k": cu[1],
        "max_seqlen_q": max(lengths_q), "max_seqlen_k": max(lengths_k),
    }  # fmt: skip


LENGTHS = ([5, 24, 1, 13], [9, 24, 17, 13])


@pytest.mark.parametrize("with_lse", [False, True])
def test_right_calls_of_packed_sequences_keep_nothing(flash_attn: Any, with_lse: bool, tmp_path: Path) -> None:
    with capture(flash_attn.flash_attn_varlen_func, tmp_path, keep="all", contract={"probs_dtype": "float32"}) as c:
        for seed in range(12):
            given = drawn(*LENGTHS, seed=seed)
            flash_attn.flash_attn_varlen_func(**given, causal=True, return_attn_probs=with_lse)
    assert (c.report.judged, c.report.wrong) == (12, 0) and not c.report.unread and not c.report.dropped, str(c.report)
    cases = [load(path) for path in sorted((tmp_path / "calls").iterdir())]
    assert {(one.case.seqlen_q, one.case.seqlen_k) for one in cases} == {*zip(*LENGTHS, strict=True)}
    assert all(one.case.heads == 2 and ("lse" in one.stages) is with_lse for one in cases)
    assert cases[0].notes[0].startswith("call 0: sequence ")


def in_pages(given: dict[str, Any], page: int, seed: int = 0) -> dict[str, Any]:
    """The same call with keys in pages, in any order, with NaN behind the last key and in pages of none."""
    starts, made = given["cu_seqlens_k"], torch.Generator().manual_seed(seed)
    used = torch.diff(starts)
    blocks = -(-used // page)
    numbers, table = (
        torch.randperm(int(blocks.sum()) + 3, generator=made),
        torch.full((len(used), int(blocks.max())), -1),
    )
    caches = {x: torch.full((len(numbers), page, *given[x].shape[1:]), torch.nan) for x in "kv"}
    first = 0
    for b, count in enumerate(blocks):
        table[b, :count] = numbers[first : first + count]
        first += int(count)
        for x in "kv":
            rows = torch.full((int(count) * page, *given[x].shape[1:]), torch.nan)
            rows[: used[b]] = given[x][starts[b] : starts[b + 1]]
            caches[x][table[b, :count]] = rows.unflatten(0, (int(count), page))
    return given | caches | {"block_table": table}


@pytest.mark.parametrize("page", [1, 8, 16])
def test_keys_in_pages_are_judged(flash_attn: Any, page: int, tmp_path: Path) -> None:
    given = [in_pages(drawn(*LENGTHS, seed=seed), page, seed) for seed in range(8)]
    with capture(flash_attn.flash_attn_varlen_func, tmp_path / "a", contract={"probs_dtype": "float32"}) as c:
        for one in given:
            flash_attn.flash_attn_varlen_func(**one, causal=True)
    assert (c.report.judged, c.report.wrong) == (8, 0) and not c.report.unread and not c.report.dropped, str(c.report)

    def told(wrong: Any, **how: Any) -> dict[str, Any]:
        return {**how, "causal": True}

    def attend(wrong: Any, **how: Any) -> Any:
        how = how | {"block_table": how["block_table"].roll(int(wrong), 0)}  # pages of another sequence
        return varlen(**how, cu_seqlens_k=None, causal=True)

    with capture(attend, tmp_path / "b", spec=told) as c:
        for n, one in enumerate(given):
            used = torch.diff(one.pop("cu_seqlens_k"))
            c.function(n == 5, **one, seqused_k=used)
    assert (c.report.judged, c.report.wrong, c.report.kept.call) == (8, 1, 5), str(c.report)
    assert diff(load(tmp_path / "b" / FIRST)).verdict == "bug"


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("paged", [False, True])
def test_steps_of_decoding_are_judged(flash_attn: Any, rows: int, paged: bool, tmp_path: Path) -> None:
    with capture(flash_attn.flash_attn_with_kvcache, tmp_path, contract={"probs_dtype": "float32"}, keep="all") as c:
        for seed in range(6):
            made = torch.Generator().manual_seed(seed)
            q = torch.randn(4, rows, 4, 16, generator=made)
            given = drawn([rows] * 4, LENGTHS[1], seed)
            if paged:
                given = in_pages(given, 8, seed)
                where = {"cache_seqlens": torch.diff(given["cu_seqlens_k"]), "block_table": given["block_table"]}
                caches = [given[x] for x in "kv"]
            else:
                caches = [torch.randn(4, 40, 2, 16, generator=made) for _ in "kv"]
                where = {"cache_seqlens": (None, 17, torch.tensor([9, 24, 17, 40]))[seed % 3]}
            flash_attn.flash_attn_with_kvcache(q, *caches, **where, causal=True, return_softmax_lse=seed % 2 == 0)
    assert (c.report.judged, c.report.wrong) == (6, 0) and not c.report.unread and not c.report.dropped, str(c.report)
    cases = [load(path).case for path in sorted((tmp_path / "calls").iterdir())]
    assert all(case.seqlen_q == rows for case in cases) and len({case.seqlen_k for case in cases}) > 1
    flash_attn.flash_attn_with_kvcache(q, *caches)
    with capture(flash_attn.flash_attn_with_kvcache, tmp_path / "b") as c:
        flash_attn.flash_attn_with_kvcache(q, *caches, k=q, v=q, cache_seqlens=9)
    assert "flash_attn:flash_attn_with_kvcache with k" in next(iter(c.report.unread))


def test_the_wrong_sequence_of_a_call_is_kept_and_judged_again(tmp_path: Path) -> None:
    def told(q: Any, k: Any, v: Any, **how: Any) -> dict[str, Any]:
        return {"q": q, "k": k, "v": v, "causal": True} | {x: y for x, y in how.items() if "seqlen" in x}

    def attend(**given: Any) -> Any:
        return varlen(**given, causal=True, wrong=1)

    with capture(attend, tmp_path, spec=told) as c:
        for seed in range(12):
            c.function(**drawn(*LENGTHS, seed=seed))
    assert c.report.judged == 12 and 0 < c.report.wrong < 12 and c.report.verdict == "bug", str(c.report)
    again = diff(load(tmp_path / FIRST))
    assert again.verdict == "bug" and again.trace.case.seqlen_q == 24 and "sequence 1" in again.trace.notes[0]


def test_of_a_long_sequence_some_rows_are_judged_and_their_gradients(flash_attn: Any, tmp_path: Path) -> None:
    with capture(flash_attn.flash_attn_varlen_func, tmp_path, contract={"probs_dtype": "float32"}, keep="all") as c:
        for lengths in ([300, 700], LENGTHS[0]):
            given = drawn(lengths, lengths)
            leaves = {x: given[x].requires_grad_() for x in "qkv"}
            flash_attn.flash_attn_varlen_func(**given | leaves, causal=True).square().sum().backward()
    assert (c.report.judged, c.report.wrong, c.report.gradients, c.report.wrong_gradients) == (2, 0, 2, 0), str(
        c.report
    )
    one = load(tmp_path / "calls/000000.safetensors").case
    assert (one.heads, one.kv_heads) == (2, 1) and one.seqlen_k in (300, 700) and 40 < one.seqlen_q <= 2**16 // 1400


def test_a_wrong_gradient_of_a_packed_sequence_is_kept(tmp_path: Path) -> None:
    def told(q: Any, k: Any, v: Any, **how: Any) -> dict[str, Any]:
        return {"q": q, "k": k, "v": v} | {x: y for x, y in how.items() if "seqlen" in x}

    def attend(q: Any, k: Any, v: Any, **how: Any) -> Any:
        return varlen(q, k, v + 0.5 * (v - v.detach()), **how)

    given = drawn([8, 12], [8, 12])
    given |= {x: given[x].requires_grad_() for x in "qkv"}
    with capture(attend, tmp_path, spec=told) as c:
        c.function(**given).square().sum().backward()
    assert (c.report.wrong, c.report.gradients, c.report.wrong_gradients) == (0, 1, 1), str(c.report)
    assert c.report.kept_gradients.stage == "dv" and {*load_run(tmp_path / BACKWARD).stages} == {"dq", "dk", "dv"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"alibi_slopes": torch.ones(4)}, "flash_attn:flash_attn_varlen_func with alibi_slopes"),
        ({"dropout_p": 0.1}, "flash_attn:flash_attn_varlen_func with dropout_p"),
        ({"max_seqlen_k": 4}, "allowed are 1 up to the declared maxima"),
    ],
)
def test_what_is_not_judged_is_told(flash_attn: Any, change: dict[str, Any], said: str, tmp_path: Path) -> None:
    with capture(flash_attn.flash_attn_varlen_func, tmp_path) as c:
        flash_attn.flash_attn_varlen_func(**drawn([8, 12], [8, 12]) | change)
    assert c.report.judged == 0 and said in next(iter(c.report.unread)), str(c.report)


@pytest.mark.parametrize("count", [1, 3, 7, 40])
def test_places_are_distinct_within_the_sequence_and_at_even_distances(count: int) -> None:
    for rows in (1, 2, 7, 8, 39, 41, 1000):
        for late in (0.0, 0.5, 0.999):
            places = _places(np.arange(count), rows, count, late)
            inside = places[places < rows]
            assert len(inside) == min(count, rows) and inside[0] >= 0 and len({*np.diff(inside)}) <= 1
            assert np.array_equal(_places(torch.arange(count), torch.tensor(rows), count, late).numpy(), places)
    late_and_early = {int(_places(np.arange(3), 1000, 3, late)[0]) for late in (0.0, 0.9)}
    assert len(late_and_early) == 2 or 1000 % 3 == 1
