"""Inputs: of a function of the user's, of a file, and as they are."""

from pathlib import Path

import numpy as np
import pytest

from workbench.operations.reference.inputs import dtype_of, inputs_of
from workbench.refusal import Raised, Refusal

MAKE = """
import numpy as np

def inputs(seed, dtype, T=4):
    return {"x": np.random.default_rng(seed).standard_normal(T).astype(dtype), "eps": 1e-6}

def drawn(seed, dtype):
    return {"x": np.random.standard_normal(3).astype(dtype)}

def forgets(seed, dtype):
    return {"x": np.ones(3)}

def tuples(seed, dtype):
    return (1, 2)

def raises(seed, dtype):
    raise KeyError("x")
"""


@pytest.fixture
def make(tmp_path: Path) -> str:
    path = tmp_path / "make.py"
    path.write_text(MAKE)
    return str(path)


def test_a_function_is_told_the_seed_the_dtype_and_sizes(make: str) -> None:
    found = inputs_of(f"{make}:inputs", "bfloat16", 3, {"T": 7})
    assert found["x"].shape == (7,) and str(found["x"].dtype) == "bfloat16" and found["eps"] == 1e-6
    assert (inputs_of(f"{make}:inputs", "bfloat16", 3, {"T": 7})["x"] == found["x"]).all()
    assert not (inputs_of(f"{make}:inputs", "bfloat16", 4, {"T": 7})["x"] == found["x"]).all()
    assert inputs_of(f"{make}:inputs", None, 0, {})["x"].dtype == np.float32


def test_a_function_that_draws_without_a_generator_draws_by_the_seed(make: str) -> None:
    before = np.random.get_state()[1].copy()
    a, b, c = (inputs_of(f"{make}:drawn", None, seed, {})["x"] for seed in (1, 1, 2))
    assert (a == b).all() and not (a == c).all() and (np.random.get_state()[1] == before).all()


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
def test_a_file_holds_them(tmp_path: Path, suffix: str) -> None:
    path, x = tmp_path / f"given{suffix}", np.arange(6, dtype=np.float32).reshape(2, 3)
    if suffix == ".npz":
        np.savez(path, x=x, n=np.arange(3))
    elif suffix == ".pt":
        torch = pytest.importorskip("torch")
        torch.save({"x": torch.from_numpy(x), "n": torch.arange(3)}, path)
    else:
        from safetensors.numpy import save_file

        save_file({"x": x, "n": np.arange(3)}, path)
    found = inputs_of(path, None, 0, {})
    assert sorted(found) == ["n", "x"] and np.array_equal(np.asarray(found["x"]), x)
    with pytest.raises(Refusal, match="--dtype is for a function"):
        inputs_of(str(path), "float16", 0, {})
    with pytest.raises(Refusal, match="--axes is for a function"):
        inputs_of({"x": x}, None, 0, {"T": 3})


def test_the_dtype_of_a_kernel_is_that_of_its_16_bit_inputs() -> None:
    wide, narrow = np.ones(2, np.float32), np.ones(2, np.float16)
    assert dtype_of({"a": wide, "n": 3}) == "float32"
    assert dtype_of({"a": wide, "b": narrow, "i": np.arange(2)}) == "float16"


def test_what_does_not_fit_is_refused(make: str) -> None:
    for name, axes, dtype, words in (
        ("forgets", {}, "bfloat16", "asked for bfloat16, and made float64: cast with"),
        ("tuples", {}, None, "returns a dict of name -> array; got tuple"),
        ("inputs", {"S": 4}, None, r"called as inputs\(seed, dtype, S=4\)"),
        ("inputs", {}, "float8", "dtype is one of float32, float16, bfloat16; got 'float8'"),
    ):
        with pytest.raises(Refusal, match=words):
            inputs_of(f"{make}:{name}", dtype, 0, axes)
    with pytest.raises(Raised, match="(?s)raises raised:.*KeyError"):
        inputs_of(f"{make}:raises", None, 0, {})
    for given, words in (
        ("make.txt", "inputs are FILE.py:FUNCTION, or a file"),
        ("none.py:inputs", "none.py: no such file"),
        ({"n": 3}, "holds no array"),
        ({"a b": np.ones(2)}, "'a b' is no name"),
    ):
        with pytest.raises(Refusal, match=words):
            inputs_of(given, None, 0, {})
