"""The probe of tensor cores, on models in place of a GPU: it must find whichever accumulation they have."""

from functools import partial

import numpy as np
import pytest

from workbench.cuda import ptx
from workbench.cuda.calibrate import probe_mma
from workbench.cuda.calibrate.backends import on_emulator, on_gpu


@pytest.mark.parametrize("pair", [(16, 2), (8, 1), (4, 0), (16, -10)], ids=str)
@pytest.mark.parametrize("name", ptx.MMA_TYPES)
def test_one_accumulation_alone_explains_the_random_sums(name, pair):
    measured = partial(probe_mma.model, block=pair[0], extra_bits=pair[1])
    found = probe_mma.differences(name, measured)
    assert found[pair] == 0
    assert all(count > 10 for other, count in found.items() if other != pair)


def test_what_is_declared_is_told_from_what_is_not(capsys):
    def as_declared(name, *tiles):
        return probe_mma.model(name, *tiles, *probe_mma.declared(name))

    def wider_blocks_of_bfloat16(name, *tiles):
        return probe_mma.model(name, *tiles, *((8, 1) if "bf16" in name else probe_mma.declared(name)))

    assert probe_mma.main(as_declared) == 0
    text = capsys.readouterr().out
    assert "differs" not in text and text.endswith("\n\nas declared in workbench/cuda/emulator/tensor.py\n")
    assert probe_mma.main(wider_blocks_of_bfloat16) == 1
    text = capsys.readouterr().out
    assert text.endswith("\n\nnot as declared\n")
    *_, bf16 = (part for part in text.split("\n\n") if part.startswith("mma_m16n8k16_bf16"))
    assert "  best     ( 8,  1)      0\n" in bf16
    marked = [line.split("  ")[-2] for line in bf16.split("\n") if line.endswith("<- differs")]
    assert "1 and 4 of 2^-25: 2 extra bits?" in marked
    assert "1 at k = 0, 2^-24 at 1, -1 at 8: lost where a block ends before it" in marked
    assert text.count("<- differs") == len(marked)


@pytest.mark.parametrize("name", ptx.MMA_TYPES)
def test_fragments_are_those_of_the_operation(name):
    """The kernel that the probe launches, on the emulator: the model's own bits for whole random tiles."""
    tiles = [x[:4] for x in probe_mma.random_tiles(name)]
    measured = probe_mma.multiply_on(on_emulator)(name, *tiles)
    np.testing.assert_array_equal(measured, probe_mma.model(name, *tiles, *probe_mma.declared(name)))
    assert np.unique(measured).size > 500


@pytest.mark.gpu
def test_the_gpu_accumulates_as_declared():
    multiply = probe_mma.multiply_on(on_gpu)
    assert [name for name in ptx.MMA_TYPES if not probe_mma.table(name, multiply)[1]] == []
