"""The step of a tensor core for every generation in the table: beside MMA-Sim, bit for bit, where that is installed; and
within what budgets allow for it, on random sums and on sums that lose as much as they can.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.numpy_kernels import accumulated
from tests.tensor_cores import OPERANDS, added
from workbench.case.tensor_cores import GENERATIONS, Accumulation
from workbench.reference.forward import PLAIN
from workbench.reference.losses import losses_of
from workbench.reference.mode import Mode

SUMS = 4096


#: whose square is the large product of adversarial sums, beside which small ones have normal factors
ONE = {"float16": 1.0, "bfloat16": 1.0, "tf32": 1.0, "float8": 128.0}
ROWS = [(name, operands) for name, kinds in GENERATIONS.items() for operands in kinds]
every_row = pytest.mark.parametrize(("generation", "operands"), ROWS, ids=map("-".join, ROWS))


def fused(operands: str, core: Accumulation, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """c [n] plus the products of a and b [n, k], float32, as the emulator's step adds them."""
    return added(operands, core, a[:, None], b[:, None], c[:, None, None]).ravel()


def random_sums(operands: str, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """a, b [n, k] and c [n] of either sign whose sizes differ, so that much is cut off; normal numbers, and zeros."""
    random, kind = np.random.default_rng(0), OPERANDS[operands]
    spread = 5 if operands == "float8" else 9

    def draw(spread: int, *size: int) -> np.ndarray:
        signs = random.choice([-1, 1, 1, 0], size)
        return signs * random.uniform(1, 1.9, size) * 2.0 ** random.integers(-spread, spread + 1, size)

    return *(draw(spread, SUMS, k).astype(kind.dtype) for _ in range(2)), draw(12, SUMS).astype(np.float32)


# ---- beside MMA-Sim


def operations(generation: str, operands: str) -> Iterator[tuple[str, str, str]]:
    """Of MMA-Sim: instruction, architecture, shape and types, that multiply such operands."""
    name = {"float16": "f16", "bfloat16": "bf16", "tf32": "tf32", "float8": "e4m3"}[operands]
    arch = {"ada": "Ada Lovelace"}.get(generation, generation.capitalize())
    if generation == "hopper" and operands == "float8":
        yield "WGMMA", arch, "m64n8k32.f32.e4m3.e4m3"
    elif generation == "blackwell" and operands == "float8":
        yield "MMA", "RTX Blackwell", "m16n8k32.f32.e4m3.e4m3.f32"
        yield "TCGen05MMA", arch, "m64n8k32.kind::f8f6f4.f32.e4m3.e4m3"
    else:
        k = {"volta": 4, "turing": 8}.get(generation, {"tf32": 8, "float8": 32}.get(operands, 16))
        yield "MMA", arch, f"{'m8' if generation == 'volta' else 'm16'}n8k{k}.f32.{name}.{name}.f32"


def mma_sim(instruction: str, arch: str, shape: str) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """D = A B + C of float32 arrays [m, k], [k, n] and [m, n], as MMA-Sim 2.1 gives it: an operation is made of an
    architecture and PTX's qualifiers, and called with torch tensors of its types. Its import compiles C++.
    """
    torch = pytest.importorskip("torch", reason="MMA-Sim needs torch")
    pytest.importorskip("mmasim", reason="MMA-Sim (pip install mmasim) is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's loader of extensions
        try:
            from mmasim import nv_ptx
        except (ImportError, RuntimeError, OSError) as error:  # without a compiler, or ninja
            pytest.skip(f"MMA-Sim cannot be imported: {error}")
    operation = getattr(nv_ptx, instruction)(arch, shape)

    def multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        types = operation.a_type, operation.b_type, torch.float32
        return operation(*(torch.from_numpy(x).to(kind) for x, kind in zip((a, b, c), types, strict=True))).numpy()

    return multiply


@every_row
def test_the_table_is_that_of_mma_sim(generation: str, operands: str) -> None:
    """Sums of two steps, since an operation has one of each; below 2^-133, where MMA-Sim gives zeros an exponent that
    this emulator does not, there is none.
    """
    core = GENERATIONS[generation][operands]
    for operation in operations(generation, operands):
        multiply = mma_sim(*operation)
        shape = operation[2].partition(".")[0]
        m, k = int(shape[1:].partition("n")[0]), int(shape.rpartition("k")[2])
        a, b, c = random_sums(operands, k)
        found, others = [], []
        for i in range(0, SUMS, m):
            left, right, start = a[i : i + m], b[i : i + 8], np.resize(c[i : i + m], (8, m)).T.copy()
            pairs = np.repeat(left, 8, 0), np.tile(right, (m, 1))
            for d, pair in ((found, core), (others, (core.block, core.extra_bits + 1))):
                d.append(fused(operands, Accumulation(*pair), *pairs, start.ravel()))
            expected = multiply(left.astype(np.float32), right.astype(np.float32).T.copy(), start).ravel()
            np.testing.assert_array_equal(found[-1].view(np.uint32), expected.view(np.uint32))
        assert np.count_nonzero(np.concatenate(found) != np.concatenate(others)) > SUMS // 50


# ---- beside the reference's model


def modelled(core: Accumulation, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """c [n] plus the products of a and b [n, k], float64, as the reference's model adds them, float32 [n]."""
    said, sides = replace(PLAIN, **core.fields()), (a[:, None, None], b[:, None, :, None])
    return Mode(tensor_core=True).add_products(c[:, None, None, None], *sides, said).ravel()


@pytest.mark.campaign(every=3)
@every_row
def test_the_reference_adds_powers_of_two_alike(generation: str, operands: str) -> None:
    """Of these the exponent of a product is that of its value, which is what the reference takes for it."""
    core = GENERATIONS[generation][operands]
    a, b, c = random_sums(operands, 4 * core.block)
    a, b = (np.sign(x.astype(np.float64)) * 2.0 ** np.frexp(x.astype(np.float64))[1] for x in (a / 2, b / 2))
    found = fused(operands, core, *(x.astype(OPERANDS[operands].dtype) for x in (a, b)), c)
    np.testing.assert_array_equal(found, modelled(core, a, b, c))
    assert np.count_nonzero(found != (a * b).sum(axis=1) + c) > SUMS // 50


# ---- within what budgets allow


def lost(operands: str, core: Accumulation, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[float, float]:
    """The largest errors of c plus the products, in units of what `losses` allow: on the emulator; in the reference's
    model.
    """
    said = replace(PLAIN, accumulation="tensor-core", **core.fields())
    allowed = losses_of(said).sum_of_products(a.shape[1], a.shape[1], "tensor-core")
    wide = [x.astype(np.float64) for x in (a, b)]
    if operands == "tf32":
        wide = [np.trunc(x / (unit := 2.0 ** (np.frexp(x)[1] - 11.0))) * unit for x in wide]
    exact, size = (wide[0] * wide[1]).sum(axis=1) + c, abs(wide[0] * wide[1]).sum(axis=1) + abs(c)
    assert size.size and np.all(size > 0)
    first, second = (
        float((abs(made - exact) / (allowed * size)).max())
        for made in (fused(operands, core, a, b, c), modelled(core, *wide, c))
    )
    return first, second


def worst_sums(operands: str, core: Accumulation, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """1, and k - 1 products of which each step loses all it may: all but three of a step are less than the last bit that
    is kept, and those three less than two of them, which are three quarters of float32's last where two extra bits are.
    """
    kind = OPERANDS[operands]
    last = ONE[operands] ** 2 * 2.0 ** -(23 + core.extra_bits)
    root = 2.0 ** np.floor(np.log2(last) / 2)
    below = 2.0 - 2.0 ** (1 - kind.fraction)
    a, b = np.full((1, k), below / 2 * last / root), np.full((1, k), root)
    for first in range(1, k, core.block):
        a[0, first : first + 2**core.extra_bits - 1 if core.extra_bits > 0 else first] *= 2
    a[0, 0] = b[0, 0] = ONE[operands]
    return a.astype(kind.dtype), b.astype(kind.dtype), np.zeros(1, np.float32)


@every_row
def test_steps_lose_no_more_than_budgets_allow_and_nearly_as_much(generation: str, operands: str) -> None:
    core = GENERATIONS[generation][operands]
    k = 8 * core.block
    for sums in (random_sums(operands, k), random_sums(operands, core.block)):
        some = abs(sums[2]) > 0
        assert all(0 <= share < 1 for share in lost(operands, core, *(x[some][:256] for x in sums)))
    shares = lost(operands, core, *worst_sums(operands, core, k))
    print(generation, operands, *core, *(f"{share:.3f}" for share in shares))
    assert all(0.6 < share <= 1 for share in shares)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_float16_accumulators_round_to_nearest_once_a_step(generation: str) -> None:
    """1, and in each step a little less than half of its last bit."""
    core = GENERATIONS[generation]["float16"]
    a = np.zeros((1, 1, 1, 8 * core.block))
    a[..., 1 :: core.block] = 2.0**-11 * (1 - 2.0**-6)
    a[..., 0] = 1
    made = accumulated("float16", fused=True, block=core.block)(a, np.ones((1, 1, a.shape[-1], 1)))
    said = replace(PLAIN, accumulator_dtype="float16", **core.fields())
    allowed = losses_of(said).sum_of_products(a.shape[-1], a.shape[-1], "tensor-core")
    assert 0.9 < float((a.sum() - made.item()) / (allowed * a.sum())) <= 1
