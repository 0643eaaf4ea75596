"""The tables: the vocabulary's stages, in data-flow order; and edits of them, which carry values and bounds along."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.reference.conftest import tiled
from workbench.case.case import Case
from workbench.case.formats import FORMATS
from workbench.case.stages import ALGORITHMS, INPUTS, absent
from workbench.reference import dense
from workbench.reference.attention import attention_of, table_of
from workbench.reference.bound import EXACT, Bound
from workbench.reference.dataflow import upstream
from workbench.reference.forward import PLAIN, forward
from workbench.reference.losses import losses_of
from workbench.reference.mode import Mode
from workbench.reference.problem import Codes, Problem
from workbench.reference.stage import Bounded, Near, Ref, Same, Stage, Table, reads
from workbench.reference.steps.cast import Cast, Last
from workbench.reference.steps.dot import Dot
from workbench.reference.steps.maximum import MaxOver, RunningMax
from workbench.reference.steps.output import LogSum, Quotient
from workbench.reference.steps.scores import SoftCap
from workbench.reference.steps.sums import RunningSum, WeightedSum
from workbench.reference.steps.weight import Weight
from workbench.reference.tables import definition, edited, inserted, parameter
from workbench.reference.walk import budgets, values

pytestmark = pytest.mark.filterwarnings("error")

SOFTCAP = frozenset({"softcap"})
#: all that changes a table
OPTIONS: list[dict[str, Any]] = [
    dict(numbers=numbers, row_sum_of_cast=cast, row_max=row_max, decode_table=table, codes=codes)
    for numbers, cast, row_max, table, codes in product(
        (frozenset(), SOFTCAP), (False, True, None), ("running", "any"), (True, False), (None, "e4m3", "nvfp4", "int4")
    )
]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_names_and_axes_are_those_of_the_vocabulary(algorithm: str) -> None:
    """case.stages holds them for those who need no steps: the two are equal whatever a kernel has."""
    for options in OPTIONS:
        if options["codes"] in ("nvfp4", "int4") and not algorithm.startswith("block"):
            continue
        decode, softcap = "table" if options["decode_table"] else "direct", 30.0 if options["numbers"] else None
        kinds = () if options["codes"] is None else FORMATS[options["codes"]].kinds
        lacks = absent(decode=decode, numbers=() if softcap is None else {"softcap"}, kinds=kinds)
        expected = [(name, stage.axes) for name, stage in ALGORITHMS[algorithm].items() if name not in lacks]
        table = table_of(algorithm, **options)  # type: ignore[arg-type]
        assert [(name, stage.axes) for name, stage in table.items() if stage.dumped] == expected, options


def refs(step: Any, kind: Any) -> list[str]:
    """What a step reads, as it names it."""
    return [ref for field in fields(step) if field.type is kind and (ref := getattr(step, field.name))]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_steps_read_inputs_and_what_comes_before_them(algorithm: str) -> None:
    """But for running states, which are those of the tile before, and have a first value."""
    seen = 0
    for options in OPTIONS:
        table = table_of(algorithm, **options)  # type: ignore[arg-type]
        order = list(table)
        for name, stage in table.items():
            for step in (stage.step, stage.fused):
                for ref in [] if step is None else refs(step, Ref) + refs(step, Near):
                    seen += 1
                    if ref in (*INPUTS, "mask"):
                        continue
                    if ref[0] == "-":
                        assert table[ref[1:]].initial is not None and "t" in table[ref[1:]].axes, (name, ref)
                    else:
                        assert order.index(ref) < order.index(name), (name, ref)
            states = {ref[1:] for ref in refs(stage.step, Ref) if ref[0] == "-"}
            assert (name in states) == (stage.initial is not None), name
    assert seen > 1000


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_stage_and_parameter_has_readers_and_a_definition(algorithm: str) -> None:
    for numbers in (frozenset(), SOFTCAP):
        table = table_of(algorithm, numbers=numbers)
        for name in table:
            assert definition(table, name)
            readers = [other for other, stage in table.items() if name in reads(stage.step) and other != name]
            assert bool(readers) == (name not in ("out", "lse")), name


def test_attention_on_decoded_rows() -> None:
    assert {name: attention_of(name) for name in ALGORITHMS} == {
        "flash": "flash",
        "split_k": "split_k",
        "fp8": "flash",
        "fp8_split_k": "split_k",
        "block_scaled": "flash",
        "block_scaled_split_k": "split_k",
    }


# ---- edits: what a fault in a parameter does to all that follows

#: more keys than a tile; grouped heads
CASE = Case(batch=2, heads=4, kv_heads=2, seqlen_q=7, seqlen_k=10, head_dim=5, causal=True)
Q, K, V = (x.astype(np.float64) for x in CASE.inputs())
MASK = CASE.mask()
CONTRACT = replace(PLAIN, block_k=4)


def problem(table: Table, **changes: Any) -> Problem:
    """Of the case, by another table."""
    contract = changes.pop("contract", replace(CONTRACT, splits=2 if "merge_sum" in table else None))
    usual: dict[str, Any] = dict(
        table=table, contract=contract, losses=losses_of(contract, SOFTCAP), inputs={"q": Q, "k": K, "v": V, "mask": MASK},
        numbers={"scale": CASE.scale, "softcap": 2.0}, attn_bias=None, exact_products=False, tiling=contract.tiling(CASE.seqlen_k), given={},
        codes=Codes("e4m3", operands=dict.fromkeys(INPUTS, "float32")),
    )  # fmt: skip
    return Problem(**{**usual, **changes})


def same(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], names: Any = None) -> None:
    names = list(expected) if names is None else names
    assert names
    for name in names:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-13, atol=1e-13, err_msg=name)


@dataclass(frozen=True)
class HeadsInTurn:
    """The rows of kv head h % kv_heads in place of h // group."""

    of: Ref

    def value(self, at: Any) -> np.ndarray:
        x = at(self.of)
        return np.tile(x, (1, at.heads // x.shape[1], 1, 1))

    control = value

    def bound(self, at: Any) -> Bounded:
        return Bounded(at.error(self.of))

    words = "{of} in turn"


@dataclass(frozen=True)
class Other:
    """Another scale."""

    number: float

    def value(self, at: Any) -> float:
        return self.number

    control = value

    def bound(self, at: Any) -> Bounded:
        return Bounded(EXACT)

    @property
    def words(self) -> str:
        return f"{self.number}"


@dataclass(frozen=True)
class Later:
    """A mask whose diagonal lies one key later."""

    of: Ref

    def value(self, at: Any) -> np.ndarray:
        return np.pad(at(self.of), ((0, 0), (1, 0)), constant_values=True)[:, :-1]

    control = value

    def bound(self, at: Any) -> Bounded:
        return Bounded(EXACT)

    words = "mask, one key later"


@dataclass(frozen=True)
class OfTile:
    """The maximum of the tile alone."""

    of: Ref

    def value(self, at: Any) -> np.ndarray:
        return np.max(at(self.of), axis=-1)

    def control(self, at: Any) -> np.ndarray:
        found: np.ndarray = at(self.of).max(axis=-1)
        assert found.dtype == np.float32
        return found

    def bound(self, at: Any) -> Bounded:
        of = at.error(self.of)
        return Bounded(EXACT if of is EXACT else Bound(np.max(of.worst, axis=-1), 0.0, 0.0))

    words = "max of the tile's {of}"


@dataclass(frozen=True)
class Doubled:
    """Twice what it reads: a sum of two."""

    of: Ref

    def value(self, at: Any) -> np.ndarray:
        return 2 * at(self.of)

    control = value

    def magnitude(self, at: Any) -> np.ndarray:
        return 2 * abs(at(self.of))

    def bound(self, at: Any) -> Bounded:
        of = at.error(self.of)
        return Bounded(EXACT if of is EXACT else Bound(*(2 * x for x in of)))

    words = "2 {of}"


def put(table: Table, name: str, step: Any) -> Table:
    """The table with another step."""
    return {**table, name: replace(table[name], step=step)}


FLASH = table_of("flash")
MERGING = table_of("split_k")
#: by what is edited: the table, of the edits that the search for causes makes
EDITS: dict[str, Table] = {
    "head map of k": put(FLASH, "k_rows", HeadsInTurn("k")),
    "head map of v": put(FLASH, "v_rows", HeadsInTurn("v")),
    "q_rows": edited(FLASH, "k_rows", of="v"),
    "scale": put(FLASH, "scale", Other(1.0)),
    "visible": put(FLASH, "visible", Later("mask")),
    "subtracted": edited(FLASH, "subtracted", of="-row_max"),
    "subtracted of tile": put(FLASH, "subtracted", OfTile("scores")),
    "summed": edited(FLASH, "summed", of="probs_cast"),
    "no rescaling": edited(FLASH, "acc", rescale="correction", values="k_rows"),
    "merge": put(MERGING, "merge_sum", Doubled("merge_max")),
    "numerator": edited(MERGING, "numerator", weight="partial_sum"),
    "weights of the merge": edited(MERGING, "merge_sum", top="", weight="merge_weight"),
    "partials": edited(MERGING, "partial_sum", initial=1.0),
    "inserted": inserted(edited(FLASH, "scores", of="twice"), "qk", {"twice": Stage("bhqk", Doubled("qk"))}),
    "inserted parameter": inserted(
        edited(FLASH, "acc", weights="twice"), "probs_cast", {"twice": parameter("bhqk", Doubled("probs_cast"))}
    ),
    "inserted in a merge": inserted(
        edited(MERGING, "numerator", of="twice"), "partial_O", {"twice": parameter("bhsqd", Doubled("partial_O"))}
    ),
    "softcap": edited(table_of("flash", numbers=SOFTCAP), "capped", cap="scale"),
    "mask before the softcap": put(table_of("flash", numbers=SOFTCAP), "visible", Later("mask")),
    "decoded": edited(table_of("fp8"), "dequant_v", by="lut_k"),
    "decoded of a merge": edited(table_of("fp8_split_k"), "k_rows", of="dequant_v"),
}


def test_an_edit_of_a_head_map_reads_other_heads() -> None:
    options = dict(scale=CASE.scale, mask=MASK)
    turned = np.tile(K, (1, 2, 1, 1))
    expected = tiled("flash", 4)(Q, turned, np.repeat(V, 2, axis=1), **options)
    found = values(problem(EDITS["head map of k"]))
    same(found, expected, [name for name in expected if name != "capped"])
    same(values(problem(EDITS["head map of v"])), tiled("flash", 4)(Q, np.repeat(K, 2, axis=1), np.tile(V, (1, 2, 1, 1)), **options))  # fmt: skip
    same(values(problem(EDITS["q_rows"])), tiled("flash", 4)(Q, V, V, **options))
    assert not np.allclose(found["qk"], values(problem(FLASH))["qk"])


def test_an_edit_of_the_scale_and_of_the_mask() -> None:
    same(values(problem(EDITS["scale"])), tiled("flash", 4)(Q, K, V, scale=1.0, mask=MASK))
    later = Later("mask")
    shifted = MASK | np.pad(MASK, ((0, 0), (1, 0)))[:, :-1]
    shifted[:, 0] = True
    same(values(problem(put(FLASH, "visible", later))), tiled("flash", 4)(Q, K, V, scale=CASE.scale, mask=shifted))


def test_an_edit_of_what_probs_subtract() -> None:
    right, found = values(problem(FLASH)), values(problem(EDITS["subtracted"]))
    same(found, right, ["qk", "scores", "row_max", "correction"])
    tile = np.arange(CASE.seqlen_k) // 4
    later = tile > 0
    with np.errstate(all="ignore"):
        before = np.exp(right["scores"][..., later] - right["row_max"][..., tile[later] - 1])
    np.testing.assert_allclose(found["probs"][..., later], before, rtol=1e-13)
    assert np.all(found["probs"][..., ~later] == np.where(np.isfinite(right["scores"][..., ~later]), np.inf, 0.0))
    # of what was dumped, of which the previous maximum is one
    given = {name: right[name] for name in ("scores", "row_max")}
    same(values(problem(EDITS["subtracted"], given=given), ["probs"]), {"probs": found["probs"]})

    own = values(problem(EDITS["subtracted of tile"]))
    seen = np.isfinite(right["scores"])
    highest = np.stack([right["scores"][..., tile == t].max(axis=-1) for t in range(3)], axis=-1)
    expected = np.exp(np.where(seen, right["scores"] - np.where(seen, highest[..., tile], 0.0), -np.inf))
    same(own, {"probs": expected})
    assert not np.allclose(own["probs"], right["probs"])


def test_an_edit_of_what_row_sum_adds() -> None:
    contract = replace(CONTRACT, probs_dtype="float16")
    found = values(problem(EDITS["summed"], contract=contract))
    other = forward("flash", Q, K, V, scale=CASE.scale, mask=MASK, contract=replace(contract, row_sum_of_cast=True))
    right = values(problem(FLASH, contract=contract))
    same(found, other)
    same(found, right, ["probs", "acc"])
    assert np.any(found["row_sum"] != right["row_sum"]) and np.any(found["out"] != right["out"])


def test_an_inserted_stage_is_read_and_returned() -> None:
    found = values(problem(EDITS["inserted"]))
    same(found, {"twice": 2 * found["qk"]})
    same(found, tiled("flash", 4)(Q, K, V, scale=2 * CASE.scale, mask=MASK), ["scores", "out", "lse"])
    hidden = values(problem(EDITS["inserted parameter"]))
    right = values(problem(FLASH))
    same(hidden, {"acc": 2 * right["acc"], "out": 2 * right["out"], "lse": right["lse"]})
    merged = values(problem(EDITS["inserted in a merge"]))
    same(merged, {"out": 2 * dense.attention(Q, K, V, scale=CASE.scale, mask=MASK)["out"]})


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("dumped", ["nothing", "everything", "scores"])
@pytest.mark.parametrize("statistics", [True, False], ids=["statistical", "worst"])
def test_an_edited_table_has_values_and_bounds(edit: str, dumped: str, statistics: bool) -> None:
    """Causes are named by a search over such edits: none may fail, and no bound may be lost."""
    table = EDITS[edit]
    names = [name for name, stage in table.items() if stage.dumped]
    made = values(problem(table))
    given = {"nothing": {}, "everything": made, "scores": {"scores": made["scores"]}}[dumped]
    p = problem(table, given=given, statistics=statistics)
    computed = values(p)
    assert [name for name in computed if table[name].dumped] == names
    found = budgets(p, computed, names)
    for name in names:
        known, budget = np.isfinite(computed[name]), found[name]
        assert budget.bound.shape == budget.statistical.shape == computed[name].shape
        # a maximum of -inf, as before the first tile, tells nothing of what is made of it
        if edit != "subtracted":
            assert known.any() and np.all(budget.bound[known] >= 0) and np.all(budget.bound[known] < np.inf), name
            assert np.all(budget.statistical[known] <= budget.bound[known]), name


def in_float32(p: Problem) -> Problem:
    """Of the same inputs, as a control takes them."""
    return replace(
        p,
        inputs={name: x if x.dtype == bool else x.astype(np.float32) for name, x in p.inputs.items()},
        numbers={name: np.float32(x) for name, x in p.numbers.items()},  # type: ignore[misc]
    )


@pytest.mark.parametrize("edit", [edit for edit in EDITS if not edit.startswith("decoded")])
def test_an_edited_table_has_a_control(edit: str) -> None:
    """In float32, as a kernel with the same fault would compute it."""
    p = problem(EDITS[edit])
    made, expected = values(in_float32(p), mode=Mode()), values(p)
    for name, x in made.items():
        if name in ("visible", "scale", "cap"):
            continue
        assert x.dtype == np.float32, name
        if edit != "subtracted":
            np.testing.assert_allclose(x, expected[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_a_control_takes_that_of_its_parameters() -> None:
    """A cast whose rounding nobody told is made by the control alone."""
    contract = replace(CONTRACT, probs_dtype="bfloat16", assumed=("probs_rounding",))
    p = problem(put(FLASH, "summed", Cast("probs", "probs")), contract=contract)
    made, expected = values(in_float32(p), mode=Mode()), values(p)
    assert np.array_equal(expected["probs_cast"], expected["probs"])
    assert np.any(made["probs_cast"] != made["probs"])
    # in the order of keys
    added = np.add.accumulate(made["probs_cast"][..., :4], axis=-1)[..., -1]
    np.testing.assert_array_equal(made["row_sum"][..., 0], added)


def test_what_an_edit_says() -> None:
    assert definition(FLASH, "probs") == "exp(scores - row_max of the key's own tile); 0 where scores is -inf"
    assert "previous row_max" in definition(EDITS["subtracted"], "probs")
    assert definition(EDITS["head map of k"], "qk") == "sum_d q k in turn, before scale and mask"
    assert definition(EDITS["scale"], "scores") == "qk * 1.0, -inf where masked"


def test_an_edit_leaves_the_table_alone() -> None:
    before = dict(FLASH)
    edited(FLASH, "acc", values="k_rows")
    inserted(FLASH, "qk", {"twice": Stage("bhqk", Same("qk"))})
    assert before == FLASH and list(before) == list(FLASH)


def test_the_records_of_stages_say_what_the_table_does() -> None:
    """What a record tells of a stage follows from how the stage is made; `case` knows no steps, so that it says it."""
    known, table = ALGORITHMS["split_k"], table_of("split_k", numbers=frozenset({"softcap"}))
    rescale = {stage.step.rescale for stage in table.values() if isinstance(stage.step, RunningSum)}
    for name, stage in known.items():
        step, before = table[name].step, upstream(table, name) | {name}
        last_of = known[step.of] if isinstance(step, Last) else None
        exps = [x for x in before if isinstance(table[x].step, Weight)]
        of_maxima = isinstance(step, RunningMax | MaxOver) or (last_of is not None and last_of.maximum)
        told = {
            "maximum": of_maxima,
            "sums": isinstance(step, Dot | RunningSum | WeightedSum | Quotient),
            "rescales": name in rescale,
            "by_tile": stage.group == "tiles" and "row_max" in before,
            "of_exp": not stage.result and bool(exps),
            "of_cast": stage.group in ("tiles", "splits") and "probs_cast" in before,
            # in the table of a kernel whose partial results are results of their own
            "divided": "d" in stage.axes and stage.group == "splits",
        }
        assert {field: getattr(stage, field) for field in told} == told, name
        # a function of libm, or nothing that is rounded; a sum that makes its own weights takes exp, too
        of_libm = isinstance(step, Weight | SoftCap | LogSum) or bool(getattr(step, "top", ""))
        assert stage.bias_tested == (not of_libm and not of_maxima), name
