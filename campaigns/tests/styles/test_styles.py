import dataclasses
import inspect

import ml_dtypes
import numpy as np
import pytest

from campaigns.styles import CORRECT, FAULTY, cases, declared, faulty_cases
from campaigns.styles.correct_workspaces import (
    workspace_bshd,
    workspace_flash,
    workspace_split_kv,
    workspace_stale_tiles,
)
from campaigns.styles.faulty_merges import split_kv
from campaigns.styles.faulty_sums import flash
from campaigns.styles.style import ALL, Style

NAMES = [style.name for style in CORRECT]
UNIT = {  # half an ulp, relative to the value
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}
# Half of the smallest subnormal, below which a prob loses all.
TINY = {"float32": 0.0, "float16": 2.0**-25, "bfloat16": 0.0, "float8_e4m3fn": 2.0**-10, "float8_e5m2": 2.0**-17}


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def inputs(case):
    rng = np.random.default_rng(case["seed"])
    shapes = [(case["heads"], case["seqlen_q"])] + 2 * [(case["kv_heads"], case["seqlen_k"])]
    return [
        (rng.standard_normal((case["batch"], h, n, case["head_dim"])) * case["input_std"]).astype(
            dtype_of(case["dtype"])
        )
        for h, n in shapes
    ]


class Truth:
    """Attention in float64, and what its errors are measured by."""

    def __init__(self, q, k, v, case):
        group = q.shape[1] // k.shape[1]
        q, k, v = (x.astype(np.float64) for x in (q, k, v))
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        m, n = q.shape[2], k.shape[2]
        self.scale = q.shape[3] ** -0.5
        self.seen = np.tri(m, n, n - m, dtype=bool) if case["causal"] else np.ones((m, n), bool)
        self.some = self.seen.any(-1)
        self.qk = q @ k.swapaxes(-1, -2)
        self.scores = np.where(self.seen, self.qk * self.scale, -np.inf)
        top = np.where(self.some, self.scores.max(-1), 0)
        p = np.exp(self.scores - top[..., None])
        total = np.where(self.some, p.sum(-1), 1)
        self.out = p @ v / total[..., None]
        self.lse = np.where(self.some, top + np.log(total), -np.inf)
        self.magnitude = p @ np.abs(v) / total[..., None]  # what errors of probs are relative to
        self.largest_v = np.abs(v).max()
        self.absolute = np.abs(q) @ np.abs(k).swapaxes(-1, -2) * self.scale  # what errors of q.k are relative to
        self.depth, self.keys = q.shape[3], n
        self.range = np.where(self.seen, top[..., None] - np.where(self.seen, self.scores, 0), 0).max(-1)


def allowed(truth, contract, dtype):
    """The largest error of out and of lse that a kernel of this contract can make, to first order."""
    u32 = UNIT["float32"]
    u_sum = UNIT[contract.get("accumulator_dtype", "float32")]
    tf32 = {"tf32": 2 * 2.0**-10, "tf32x3": 2.0**-20}.get(
        contract.get("input_precision"), 0.0
    )  # a cut loses a whole ulp
    u_q = UNIT[contract.get("scaled_q_dtype", "float32")]
    u_scores = UNIT[contract.get("scores_dtype", "float32")]
    u_p = UNIT[contract.get("probs_dtype", "float32")]
    # Scores: products summed (depth roundings), the scale and the mask's addition, each rounded to the dtype of scores.
    relative = truth.depth * u_sum + tf32 + u_q + 3 * u_scores + 4 * u32
    e_s = (np.where(truth.seen, truth.absolute, 0) * relative).max(-1)
    # exp's own error, and the rounding of its argument: of max and score in any unit, and of lse once for each merge.
    e_exp = contract.get("exp_ulps", 4.0) * 2 * u32 + contract.get("exp_ulps_per_x", 0.0) * 2 * u32 * truth.range
    e_arg = (
        2
        * u32
        * (np.abs(np.where(truth.some, truth.lse, 0)) + truth.range)
        * (20 if contract.get("normalisation") == "lse" else 3)
    )
    e_p = e_s + e_exp + e_arg + (4 * truth.keys + 8) * u32
    e_lse = (
        e_p
        + 8 * u32 * np.abs(np.where(truth.some, truth.lse, 0))
        + (u_p if contract.get("row_sum_of_cast", True) else 0)
    )
    u_partial = UNIT[contract.get("partials_dtype", "float32")]
    u_out = UNIT[dtype] * (2 if contract.get("out_rounding") == "toward-zero" else 1)
    # A prob that is relative to a bound above the maximum loses more below the smallest number: here at most e^4.
    lift = np.e**4 if contract.get("row_max") == "upper_bound" else 1.0
    floor = truth.keys * TINY[contract.get("probs_dtype", "float32")] * lift * truth.largest_v
    many = 2 * e_p + 2 * u_p + u_out + 2 * u_partial + (tf32 + truth.keys * u_sum)
    return many[..., None] * truth.magnitude + floor + 2.0**-24 * (dtype == "float16"), e_lse


def judge_ends(stages, contract, truth, case, name):
    out, lse = stages["out"].astype(np.float64), stages["lse"]
    assert stages["out"].dtype == dtype_of(case["dtype"]) and lse.dtype == np.float32, name
    dead = np.broadcast_to(~truth.some, lse.shape)
    assert np.array_equal(out[dead], np.full_like(out[dead], contract.get("empty_out", 0.0)), equal_nan=True), (
        name,
        case,
    )
    assert np.array_equal(lse[dead], np.full_like(lse[dead], contract.get("empty_lse", -np.inf))), (name, case)
    out_bound, lse_bound = allowed(truth, contract, case["dtype"])
    assert np.all(np.abs(out - truth.out)[~dead] <= out_bound[~dead]), (name, case)
    assert np.all(np.abs(lse[~dead] - truth.lse[~dead]) <= lse_bound[~dead]), (name, case)


@pytest.mark.parametrize("style", CORRECT, ids=NAMES)
def test_correct_kernels_are_within_what_their_arithmetic_can_lose(style):
    judged = 0
    for case in cases(style, count=8, seed=7):
        q, k, v = inputs(case)
        stages = declared(style, "full")(q, k, v, scale=case["head_dim"] ** -0.5, causal=case["causal"])
        truth = Truth(q, k, v, case)
        judge_ends(stages, stages["contract"], truth, case, style.name)
        judged += truth.some.sum()
    assert judged > 0


@pytest.mark.parametrize("style", [s for s in CORRECT if not s.explained_by], ids=lambda s: s.name)
def test_correct_kernels_are_as_good_as_their_dtype_in_the_mean(style):
    # Of 16 bits out's own rounding is u / sqrt(3) in the mean at most, and casts of probs average to less. float32
    # scores of unit inputs move probs by a few u, and the exponent's own rounding by as many.
    for dtype, units in (("float16", 1.0), ("bfloat16", 1.0), ("float32", 16.0)):
        if dtype in style.dtypes:
            case = CASE | {"dtype": dtype, "input_std": 1.0}
            q, k, v = inputs(case)
            truth = Truth(q, k, v, case)
            out = style.function(q, k, v, scale=truth.scale, causal=True)["out"].astype(np.float64)
            error = np.sqrt(np.mean((out - truth.out) ** 2) / np.mean(truth.magnitude**2))
            assert error <= units * UNIT[dtype], (style.name, dtype, error / UNIT[dtype])


CASE = {
    "batch": 1,
    "heads": 4,
    "kv_heads": 2,
    "seqlen_q": 70,
    "seqlen_k": 150,
    "head_dim": 32,
    "causal": True,
    "distribution": "normal",
    "input_std": 2.0,
    "seed": 11,
}


def close(actual, expected, tolerance, where=...):
    actual, expected = np.asarray(actual, np.float64)[where], np.asarray(expected, np.float64)[where]
    tolerance = (
        np.broadcast_to(tolerance, np.shape(actual)) if np.ndim(tolerance) == 0 else np.asarray(tolerance)[where]
    )
    same = (actual == expected) | (
        np.isfinite(expected) & (np.abs(actual - np.where(np.isfinite(expected), expected, 0)) <= tolerance)
    )
    return same.size > 0 and bool(np.all(same))


def masked_max(x):
    return x.max(-1) if x.shape[-1] else np.full(x.shape[:-1], -np.inf)


def finite(x):
    return np.where(np.isinf(x), 0, x)


def wide(x):
    return np.asarray(x).astype(np.float64)


def layout(contract, keys):
    """The tiles of each split in the order in which they are visited: (number, first key, end)."""
    block = contract.get("block_k")
    bounds = contract.get("split_bounds")
    if block is None:
        return [[(None, lo, hi)] for lo, hi in zip(bounds, bounds[1:], strict=False)] if bounds else None
    tiles = [(t, lo, min(lo + block, keys)) for t, lo in enumerate(range(0, keys, block))]
    order = contract.get("tile_order", "ascending")
    if isinstance(order, list):
        assert sorted(order) == list(range(len(tiles)))
        tiles = [tiles[t] for t in order]
    splits = contract.get("splits", 1)
    each = -(-len(tiles) // splits)
    if bounds:
        assert bounds == sorted(set(bounds)) and bounds[0] == 0 and bounds[-1] == keys
        found = [[x for x in tiles if lo <= x[1] < hi] for lo, hi in zip(bounds, bounds[1:], strict=False)]
    else:
        found = [tiles[s * each : (s + 1) * each] for s in range(splits)]
    return [some[::-1] for some in found] if order == "descending" else found


def judge_stages(style, dtype):
    """Each dumped stage held against what its definition makes of the dumped stages before it; the names that were."""
    case = CASE | {"dtype": dtype, "input_std": 1.0 if not style.fits(CASE) else 2.0}
    q, k, v = inputs(case)
    truth = Truth(q, k, v, case)
    d = declared(style, "full")(q, k, v, scale=truth.scale, causal=True)
    contract = d.pop("contract")
    group = q.shape[1] // k.shape[1]
    v64 = np.repeat(v.astype(np.float64), group, 1)
    unit = 1.4426950408889634 if contract.get("base2") else 1.0
    unit /= truth.scale if not contract.get("scores_scaled", True) else 1.0
    sentinel = contract.get("mask_sentinel", -np.inf)
    skips = contract.get("skips_masked_tiles", False)
    e_s = truth.absolute * unit * (allowed(truth, contract, dtype)[1].max() / truth.absolute.max() + 1e-5)
    rel = 2e-5 + contract.get("exp_ulps", 4.0) * 2.4e-7
    u_sum = UNIT[contract.get("accumulator_dtype", "float32")] * truth.keys
    u_sum += 4 * 2.0**-10 if contract.get("input_precision") == "tf32" else 0
    cast = dtype_of(contract.get("probs_dtype", "float32"))
    judged = set()

    def exp(x):
        return np.exp(np.minimum(x / unit, 80))  # larger ones are of discarded branches

    if "qk" in d:
        judged.add("qk")
        assert close(d["qk"], truth.qk, truth.absolute / truth.scale * (e_s / truth.absolute / unit)), "qk"
    if "scores" in d:
        judged.add("scores")
        scores = wide(d["scores"])
        seen = np.broadcast_to(truth.seen, scores.shape)
        assert close(scores, truth.scores * unit, e_s, seen), "scores"
        if not skips:
            assert np.all(scores[~seen] <= sentinel / 2), "masked scores"
    x = scores if "scores" in d else np.where(truth.seen, truth.scores * unit, -np.inf)
    x = np.where(truth.seen, x, x if sentinel != -np.inf and not skips and "scores" in d else -np.inf)
    # Where scores are not dumped, what follows is held against float64's.
    loose = rel if "scores" in d else rel + e_s.max() / unit
    visits = layout(contract, truth.keys)
    if visits is None:
        assert not set(d) - {"qk", "scores", "out", "lse"}, "stages of tiles need block_k"
        return judged
    last = []
    for tiles in visits:
        m = np.full(truth.lse.shape, -np.inf)
        l, o, o_size = np.zeros_like(m), np.zeros_like(truth.out), np.zeros_like(truth.out)
        for t, lo, hi in tiles:
            where = np.broadcast_to(truth.seen[:, lo:hi].any(-1), m.shape) if skips else np.ones(m.shape, bool)
            above = np.maximum(m, x[..., lo:hi].max(-1))
            if t is not None and "row_max" in d:
                judged.add("row_max")
                dumped = wide(d["row_max"][..., t])
                if contract.get("row_max") == "upper_bound":
                    assert np.all(dumped >= above), "row_max"
                else:
                    assert close(dumped, above, 0.0 if "scores" in d else e_s.max(), where), "row_max"
                above = np.where(where, dumped, above)
            scaled = np.where(m == -np.inf, 0.0, exp(finite(m) - finite(above)))
            if t is not None and "correction" in d:
                judged.add("correction")
                assert close(d["correction"][..., t], scaled, loose, where), "correction"
            p = np.where(x[..., lo:hi] == -np.inf, 0.0, exp(finite(x[..., lo:hi]) - finite(above)[..., None]))
            inside = np.broadcast_to(where[..., None], p.shape)
            if t is not None and "probs" in d:
                judged.add("probs")
                dumped = wide(d["probs"][..., lo:hi])
                assert close(dumped, p, loose * p + 2.0**-126 + (loose if "scores" not in d else 0), inside), "probs"
                p = np.where(inside, dumped, 0.0)
            if t is not None and "probs_cast" in d:
                judged.add("probs_cast")
                dumped = wide(d["probs_cast"][..., lo:hi])
                exact = wide(p.astype(np.float32).astype(cast))
                slack = (
                    0.0 if "probs" in d else (loose + 2 * UNIT[cast.name]) * np.abs(p) + TINY[cast.name] * 2 + 2.0**-126
                )
                assert close(dumped, exact, slack, inside), "probs_cast"
                p_cast = dumped
            else:
                p_cast = wide(p.astype(np.float32).astype(cast))
            summand = p_cast if contract["row_sum_of_cast"] else p
            l = l * scaled + summand.sum(-1)
            o, o_size = (
                o * scaled[..., None] + p_cast @ v64[:, :, lo:hi],
                o_size * scaled[..., None] + p_cast @ np.abs(v64[:, :, lo:hi]),
            )
            e_l = (
                loose + (UNIT[cast.name] if contract["row_sum_of_cast"] and "probs_cast" not in d else 0)
            ) * l + 2.0**-120
            e_o = (loose * 4 + 2 * u_sum + 2 * (UNIT[cast.name] if "probs_cast" not in d else 0)) * o_size + 2.0**-110
            if t is not None and "row_sum" in d:
                judged.add("row_sum")
                assert close(d["row_sum"][..., t], l, e_l, where), "row_sum"
            if t is not None and "acc" in d:
                judged.add("acc")
                assert close(d["acc"][..., t, :], o, e_o, np.broadcast_to(where[..., None], o.shape)), "acc"
            m = above
        last.append((m, l, o, o_size))
    if "partial_max" in d:
        judged |= {"partial_max", "partial_sum"}
        for s, (m, l, o, o_size) in enumerate(last):
            dumped = wide(d["partial_max"][:, :, s])
            assert close(dumped, m, 0.0 if "scores" in d else e_s.max()), "partial_max"
            shift = np.where(np.isfinite(m), exp(finite(m) - finite(dumped)), 1.0)
            assert close(d["partial_sum"][:, :, s], l * shift, loose * l * shift + 2.0**-120), "partial_sum"
            if "partial_O" in d:
                judged.add("partial_O")
                slack = loose * 4 + UNIT[contract["partials_dtype"]] + 2 * UNIT[cast.name]
                o, o_size = o * shift[..., None], o_size * shift[..., None]
                assert close(d["partial_O"][:, :, s], o, slack * o_size + 2.0**-110), "partial_O"
    if "merge_max" in d:
        judged |= {"merge_max", "merge_weight", "merge_sum"}
        parts = {name: wide(d[name]) for name in ("partial_max", "partial_sum", "partial_O")}
        top = parts["partial_max"].max(2)
        assert close(d["merge_max"], top, 0.0), "merge_max"
        m = parts["partial_max"]
        weight = np.where(m == -np.inf, 0.0, exp(finite(m) - finite(top)[:, :, None]))
        assert close(d["merge_weight"], weight, rel), "merge_weight"
        total = (wide(d["merge_weight"]) * parts["partial_sum"]).sum(2)
        assert close(d["merge_sum"], total, rel * total), "merge_sum"
        out = (wide(d["merge_weight"])[..., None] * parts["partial_O"]).sum(2) / np.where(total == 0, 1, total)[
            ..., None
        ]
        assert close(d["out"], out, 2 * UNIT[dtype] * np.abs(out) + 1e-5 * truth.magnitude + 2.0**-24), "out"
    return judged


@pytest.mark.parametrize("style", CORRECT, ids=NAMES)
def test_dumped_stages_are_what_their_names_say(style):
    for dtype in style.dtypes:
        d = style.function(*inputs(CASE | {"dtype": dtype}), scale=32**-0.5, causal=True)
        assert judge_stages(style, dtype) == set(d) - {"out", "lse"}


@pytest.mark.parametrize(
    "name", ["fa2_forward", "bound_by_head", "long_head", "clamped_splits", "added_1e9_splits", "descending"]
)
def test_a_stage_that_is_off_is_noticed(name):
    style = next(s for s in CORRECT if s.name == name)
    dtype = style.dtypes[-1]
    stages = set(style.function(*inputs(CASE | {"dtype": dtype}), scale=32**-0.5, causal=True)) - {"out", "lse"}
    assert len(stages) >= 7
    for stage in stages:

        def off(q, k, v, *, scale, causal, stage=stage):
            d = style.function(q, k, v, scale=scale, causal=causal)
            d[stage] = d[stage].copy()
            d[stage][:, 1] = d[stage][:, 1] * d[stage].dtype.type(0.97)
            return d

        with pytest.raises(AssertionError):
            judge_stages(dataclasses.replace(style, function=off), dtype)


def test_float64_is_dumped_by_the_kernel_in_float64_alone():
    for style in CORRECT:
        stages = style.function(*inputs(CASE | {"dtype": style.dtypes[0]}), scale=32**-0.5, causal=True)
        assert (any(x.dtype == np.float64 for x in stages.values())) == (style.name == "float64_inside"), style.name


def test_groups_have_variants_and_fields_of_their_own():
    groups = {s.group for s in CORRECT}
    assert groups == {
        "exponent",
        "row-sum",
        "additive-mask",
        "lse",
        "clamp",
        "arithmetic",
        "workspace",
        "order",
        "wild",
    }
    assert all(sum(s.group == g for s in CORRECT) >= 3 for g in groups)
    assert len(set(NAMES)) == len(NAMES) and len({f.name for f in FAULTY}) == len(FAULTY)
    for style in CORRECT:
        assert not set(style.units) & set(style.arithmetic), style.name
        assert set(style.explained_by) <= {**style.units, **style.arithmetic}.keys(), style.name
        assert (style.group == "arithmetic") <= bool(style.explained_by), style.name


def test_levels_of_declaration():
    style = next(s for s in CORRECT if s.name == "fa2_forward")
    q, k, v = inputs(CASE | {"dtype": "bfloat16"})
    by_level = {
        level: declared(style, level)(q, k, v, scale=0.125, causal=True) for level in ("full", "units", "silent")
    }
    assert by_level["units"]["contract"] == {"block_k": 64, "scores_scaled": False, "empty_lse": float("inf")}
    assert by_level["full"]["contract"] == {
        **by_level["units"]["contract"],
        "scores_dtype": "float32",
        "scale_in": "scores",
        "probs_dtype": "bfloat16",
        "probs_rounding": "nearest",
        "partials_dtype": "float32",
        "row_sum_of_cast": False,
        "accumulation": "nearest",
        "accumulator_dtype": "float32",
        "input_precision": "ieee",
        "exp_ulps": 4.0,
        "exp_ulps_per_x": 2.0,
        "exp_flushes": False,
        "exp_floor": None,
        "exp_argument": "fma",
        "normalisation": "division",
        "fast_math": False,
        "out_rounding": "nearest",
    }
    assert by_level["silent"]["contract"] == {"empty_lse": float("inf")}
    assert set(by_level["silent"]) == {"out", "lse", "contract"}
    quiet = declared(next(s for s in CORRECT if s.name == "descending"), "silent")(q, k, v, scale=0.125, causal=True)
    assert set(quiet) == {"out", "lse"}


def test_workspaces_return_the_same_arrays_with_new_numbers():
    q, k, v = inputs(CASE | {"dtype": "float16"})
    for function in (workspace_flash, workspace_split_kv, workspace_bshd, workspace_stale_tiles):
        first = function(q, k, v, scale=0.125, causal=True)
        kept = {name: x.copy() for name, x in first.items()}
        second = function(q[..., ::-1], k, v, scale=0.125, causal=True)
        shared = [name for name in first if np.shares_memory(first[name], second[name])]
        assert "lse" in shared and not np.array_equal(first["lse"], kept["lse"]), function.__name__


def test_cases_are_drawn_from_the_seed_and_fit():
    for style in CORRECT[:12]:
        drawn = cases(style, count=20, seed=3)
        assert drawn == cases(style, count=20, seed=3) != cases(style, count=20, seed=4)
        assert all(style.fits(c) and c["dtype"] in style.dtypes for c in drawn)
    every = cases(next(s for s in CORRECT if s.dtypes == ALL and s.name == "descending"), count=200, seed=1)
    assert all(1 <= c[n] <= 300 for c in every for n in ("seqlen_q", "seqlen_k")) and {
        c["dtype"] for c in every
    } == set(ALL)
    assert any(c["causal"] and c["seqlen_q"] > c["seqlen_k"] for c in every) and {c["input_std"] for c in every} == {
        0.1,
        1.0,
        4.0,
    }


@pytest.mark.parametrize("fault", FAULTY, ids=lambda f: f.name)
def test_faults_move_out_or_lse_where_they_say_so(fault):
    for case in faulty_cases(fault, count=4, seed=5):
        q, k, v = inputs(case)
        how = {"scale": case["head_dim"] ** -0.5, "causal": case["causal"]}
        wrong, right = fault.function(q, k, v, **how), fault.correct(q, k, v, **how)
        assert set(wrong) == {"out", "lse"} and all(wrong[n].dtype == right[n].dtype for n in wrong)
        assert any(not np.array_equal(wrong[n], right[n], equal_nan=n == "lse") for n in wrong), case


# Within what correct arithmetic may lose at worst: one loses less than a float32, the other an ulp of out.
SUBTLE = {"cut_off_undeclared", "log2e_of_5_digits"}


def test_most_faults_are_beyond_what_a_correct_kernel_can_lose():
    missed = set()
    for fault in FAULTY:
        for case in faulty_cases(fault, count=6, seed=6):
            q, k, v = inputs(case)
            stages = fault.function(q, k, v, scale=case["head_dim"] ** -0.5, causal=case["causal"])
            try:
                judge_ends(
                    stages,
                    {"probs_dtype": case["dtype"], "row_sum_of_cast": False},
                    Truth(q, k, v, case),
                    case,
                    fault.name,
                )
            except AssertionError:
                break
        else:
            missed.add(fault.name)
    assert missed == SUBTLE


def test_what_faults_depart_from_is_correct():
    known = {s.function for s in CORRECT}
    for function in {f.correct for f in FAULTY} - known:
        assert function in (flash, split_kv)
        for case in cases(Style(function, "wild", ("float16", "bfloat16"), {}, {}, ""), count=10, seed=9):
            q, k, v = inputs(case)
            stages = function(q, k, v, scale=case["head_dim"] ** -0.5, causal=case["causal"])
            contract = {"probs_dtype": case["dtype"], "row_sum_of_cast": False}
            judge_ends(stages, contract, Truth(q, k, v, case), case, function.__name__)


def test_kernels_take_what_a_kernel_takes():
    for entry in (*CORRECT, *FAULTY):
        assert list(inspect.signature(entry.function).parameters) == ["q", "k", "v", "scale", "causal"], entry.name
