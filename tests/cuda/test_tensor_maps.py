"""What copies of whole tiles know of their arrays."""

import ast
from types import SimpleNamespace

import pytest
from cuda.bindings import driver

from workbench import Case
from workbench.cuda.build import build
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve
from workbench.cuda.tensor_maps import TensorMap, encoded, tensor_maps

CALL = "hopper.cp_async_bulk_tensor(tiles, 0, {}, {}, (b, h, row, 0), {}, bars, 0)\n"


def maps(*calls, **bound):
    return tensor_maps(ast.parse("".join(CALL.format(*call) for call in calls)), bound)


def test_maps_are_read_from_the_copies():
    found = maps(("k", 1, "BLOCK_K"), ("q", 0, "BLOCK_Q"), ("k", 1, "BLOCK_K"), BLOCK_Q=128, BLOCK_K=64)
    assert found == (TensorMap("q", 128), TensorMap("k", 64))
    assert maps() == ()


def test_a_number_is_of_one_map():
    with pytest.raises(
        ValueError, match=r"tensor map 0 is used for both TensorMap\(array='k', rows=64\) and TensorMap\(array='v'"
    ):
        maps(("k", 0, "ROWS"), ("v", 0, "ROWS"), ROWS=64)


@pytest.mark.parametrize(("name", "given"), [("flash_wgmma", dict(dtype="float16")), ("fp8_wgmma", {})])
def test_maps_of_kernels(name, given):
    kernel = KERNELS[name]
    case = resolve(kernel, Case(seqlen=200, block_q=128, block_k=64, **given))
    ((function, file),) = kernel.functions.items()
    made = build(file, function, kernel.constants(case), (), ())
    assert [rows for _, rows in made.maps] == [128, 64, 64]
    assert [array[-1] for array, _ in made.maps] == ["q", "k", "v"] and {*made.parameters} > {x for x, _ in made.maps}


def asked(monkeypatch, status=0):
    """The arguments of the driver's function."""
    found = []
    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", lambda *given: found.append(given) or (status, "a map"))
    return found


def test_what_the_driver_is_asked(monkeypatch):
    """Axes from the innermost on; the strides of all but that one; a box of 128 bytes a row."""
    found = asked(monkeypatch)
    assert encoded(4096, (2, 3, 50, 64), (19200, 6400, 128, 2), 2, 32) == "a map"
    ((kind, axes, address, sizes, strides, box, steps, _, swizzle, _, fill),) = found
    assert (axes, address) == (4, 4096) and kind.name.endswith("UINT16")
    assert [[int(x) for x in of] for of in (sizes, strides, box, steps)] == [
        [64, 50, 3, 2],
        [128, 6400, 19200],
        [64, 32, 1, 1],
        [1] * 4,
    ]
    assert swizzle.name.endswith("128B") and fill.name.endswith("NONE")


def test_codes_have_boxes_of_as_many_bytes(monkeypatch):
    found = asked(monkeypatch)
    encoded(0, (1, 1, 7, 48), (336, 336, 48, 1), 1, 64)
    assert found[0][0].name.endswith("UINT8") and [int(x) for x in found[0][5]] == [128, 64, 1, 1]


def test_an_axis_of_one_element_has_any_stride(monkeypatch):
    """NumPy and torch may say anything there, and the driver takes multiples of 16 bytes alone."""
    found = asked(monkeypatch)
    encoded(0, (1, 1, 7, 64), (2, 6, 128, 2), 2, 64)
    assert [int(x) % 16 for x in found[0][4]] == [0, 0, 0]


def test_what_the_driver_refuses(monkeypatch):
    asked(monkeypatch, SimpleNamespace(name="CUDA_ERROR_INVALID_VALUE"))
    with pytest.raises(RuntimeError, match=r"CUDA_ERROR_INVALID_VALUE for a tensor map of \[1, 1, 7, 60\], strides"):
        encoded(0, (1, 1, 7, 60), (840, 840, 120, 2), 2, 64)
