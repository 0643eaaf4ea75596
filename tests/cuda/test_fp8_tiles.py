"""Codes with a scale for every 128 rows of a head: made, given, multiplied, and read from another tile."""

import numpy as np
import pytest

from tests.refusals import refusal
from workbench import Case, diff, run
from workbench.cuda.quantize import quantized
from workbench.reference import quantize as reference
from workbench.trace.narrow import narrowed

CASE = Case(heads=2, kv_heads=1, seqlen_q=140, seqlen_k=300, codes="e4m3", scale_of="tile")
#: kernel -> tiles of a build that other tests have, too, where it has one
TILES = {
    "fp8": {},
    "fp8_mma": dict(block_q=32, block_k=32),
    "fp8_wgmma": dict(block_q=64, block_k=64),
}
#: rows of scales, and the tile that each is in
ROWS = np.arange(300) // 128


def stepped(rows: int, heads: int) -> np.ndarray:
    """Of which a row of each tile has the largest number: 448 in the first tile, 896 in the next, ..."""
    x = np.ones((1, heads, rows, 64), np.float32)
    for tile in range(-(-rows // 128)):
        x[:, :, min(128 * tile + 77, rows - 1), 5] = -448.0 * (tile + 1)
    return x


@pytest.mark.parametrize("make", ["kernel", "reference"])
def test_scales_by_hand(make):
    x = stepped(300, 1)
    scale = quantized(x, "k", CASE)["scale_k"] if make == "kernel" else reference.scale(x, "e4m3", scale_of="tile")
    assert scale.shape == (1, 1, 300, 1)
    np.testing.assert_array_equal(scale[0, 0, :, 0], ROWS + 1)


@pytest.mark.campaign
@pytest.mark.parametrize("kernel", [pytest.param("fp8", marks=pytest.mark.campaign), "fp8_mma", "fp8_wgmma"])
def test_every_kernel_takes_them(kernel):
    trace = run(kernel, CASE.but(**TILES[kernel]), backend="emulator")
    scale = trace.stages["scale_k"][0, 0, :, 0]
    assert len(np.unique(scale)) == 3 and np.all(scale == scale[np.array([0, 128, 256])][ROWS])
    assert diff(trace).verdict in ("rounding", "exact")


@pytest.mark.campaign
@pytest.mark.parametrize(
    "asked", [False, pytest.param(True, marks=pytest.mark.campaign)], ids=["narrowed", "asked for"]
)
def test_a_part_of_a_run_does_not_hold_what_scales_of_its_tiles_are_of(asked):
    case, part = CASE.but(**TILES["fp8_mma"]), "h=1,q=3:9"
    if asked:
        judged = diff(run("fp8_mma", case, where=part, probes="output", backend="emulator"))
    else:
        judged = diff(narrowed(run("fp8_mma", case, backend="emulator"), part))
    assert judged.verdict == "rounding" and judged.origins == ()
    assert judged["scale_q"].verdict == "not judged" and judged["scale_k"].verdict == "exact"


def arrays(**changed):
    """The inputs as codes and scales, of tiles."""
    q, k, v = CASE.inputs()
    made = quantized(q, "q", CASE) | quantized(k, "k", CASE) | quantized(v, "v", CASE)
    return made | {name: x[:, :, ::128, 0] for name, x in made.items() if name.startswith("scale")} | changed


@pytest.mark.campaign
def test_scales_are_given_one_a_tile_or_one_a_row():
    of_tiles = arrays()
    assert of_tiles["scale_k"].shape == (1, 1, 3)
    of_rows = arrays(scale_k=of_tiles["scale_k"][:, :, ROWS, None])
    case = CASE.but(**TILES["fp8_wgmma"])
    found = [run("fp8_wgmma", case, inputs=x, backend="emulator") for x in (of_tiles, of_rows)]
    assert found[0].stages["out"].tobytes() == found[1].stages["out"].tobytes()
    assert all(diff(trace).verdict in ("rounding", "exact") for trace in found)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (
            1 + np.arange(300, dtype=np.float32).reshape(1, 1, 300, 1),
            "kernel fp8_wgmma: scale_k must be the same in the 128 rows of a tile (scale_of=tile); got other values",
        ),
        (
            np.ones((1, 1, 5), np.float32),
            "kernel fp8_wgmma: scale_k has axes [b h k g] and must have shape [1, 1, 300, 1], or [1, 1, 3], "
            "one per tile, for this case; got [5]",
        ),
    ],
)
def test_other_scales_are_refused(scale, message):
    assert refusal(run, "fp8_wgmma", CASE, inputs=arrays(scale_k=scale), backend="emulator") == message


def test_formats_without_them_are_refused():
    assert refusal(Case, codes="int8", scale_of="tile") == (
        "int8 codes take scale_of=head or token; got scale_of=tile, which is for codes=e4m3, e5m2"
    )


@pytest.mark.campaign
def test_the_scale_of_the_next_tile_is_named():
    """On cases of codes, although attention on decoded rows is searched."""
    case = CASE.but(**TILES["fp8_wgmma"])
    trace = run("fp8_wgmma", case, faults="fp8-wgmma-v-scale-of-next-tile", backend="emulator")
    cause = diff(trace).explain().causes[0]
    assert cause.text == "scales of tiles are read from the next tile of 64 rows (v)" and cause.proved
    assert cause.trial is not None and cause.trial.case.scale_of == "tile" and cause.trial.case.codes == "e4m3"
