"""All measurements together: on the emulator, as code for GPUs, and on a GPU beside what NVIDIA documents."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from numba.cuda import compiler, dispatcher, types
from numba.cuda.np.numpy_support import from_dtype

from tests.cuda.calibrate.models import declared
from workbench.cuda import ptx
from workbench.cuda.calibrate import accumulation, casts, probe_mma, ulps
from workbench.cuda.calibrate import backends as machine
from workbench.cuda.calibrate import measure as calibrate
from workbench.cuda.calibrate.measure import had
from workbench.cuda.calibrate.record import Cast, TensorCore, contract_fields
from workbench.cuda.doctor import facts
from workbench.refusal import Refusal

ARCHITECTURES = ((8, 0), (8, 9), (9, 0), (10, 0))
#: the approximations that each function stands on
INSTRUCTIONS = {
    "exp": {"ex2.approx.ftz.f32"},
    "fast_exp": {"ex2.approx.f32"},
    "ex2": {"ex2.approx.f32"},
    "ex2_ftz": {"ex2.approx.ftz.f32"},
    "log": set(),
    "fast_log": {"lg2.approx.f32"},
    "fast_log_near_1": {"lg2.approx.f32"},
}


@pytest.mark.campaign
def test_the_emulator_is_measured_as_it_is_made():
    measured = calibrate.measure("emulator")
    assert (measured.backend, measured.device) == ("emulator", "emulator")
    assert measured.compute_capability is None and measured.driver is None
    assert list(measured.functions) == list(ulps.FUNCTIONS)
    assert list(measured.tensor_cores) == list(ptx.MMA_TYPES) and list(measured.casts) == list(casts.CONVERSIONS)
    assert contract_fields(measured) == {
        "exp_ulps": 0.502,
        "exp_ulps_per_x": 0.0,
        "exp_flushes": False,
        "accumulation": "tensor-core",
        "mma_block": 16,
        "mma_extra_bits": 2,
    }


def test_fp8_is_left_out_where_a_gpu_has_none():
    assert had(ptx.MMA_TYPES, (8, 6)) == ["mma_m16n8k16_f16", "mma_m16n8k16_bf16"]
    assert had(casts.CONVERSIONS, (8, 6)) == ["cvt_f16x2_f32", "cvt_bf16x2_f32", "store_float16", "store_bfloat16"]
    assert had(ptx.MMA_TYPES, (8, 9)) == had(ptx.MMA_TYPES, None) == list(ptx.MMA_TYPES)


def test_an_unknown_backend_is_refused():
    with pytest.raises(Refusal) as caught:
        calibrate.measure("gpu")
    assert str(caught.value) == "backend must be one of auto, emulator, cuda; got 'gpu'"


# ---- code for GPUs


@pytest.fixture
def compiling(monkeypatch):
    """A machine that compiles every launch for GPUs and then runs it on the emulator; and the PTX for sm_90 it made."""
    if missing := facts().missing_toolkit:
        pytest.skip(f"needs the CUDA toolkit; not found: {', '.join(missing)}")
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=(9, 0)))
    made = []

    def type_of(argument):
        if isinstance(argument, np.ndarray):
            return types.Array(from_dtype(argument.dtype), argument.ndim, "C")
        return {int: types.int64, float: types.float64, np.float32: types.float32}[type(argument)]

    def compiles(kernel):
        run = machine.on_emulator(kernel)
        seen = set()

        def launch(grid, block, arguments):
            signature = types.void(*map(type_of, arguments))
            if signature not in seen:
                seen.add(signature)
                library, _ = compiler._compile_pyfunc_with_fixup(
                    kernel, signature, device=False, abi="numba", cc=(9, 0)
                )
                made.append(library.get_asm_str(cc=(9, 0)))
                fp8 = re.search("e4m3|e5m2", made[-1])
                for cc in ARCHITECTURES:
                    if cc >= calibrate.FP8_SINCE or not fp8:
                        assert linked(library, cc).startswith(b"\x7fELF")
            assert all(x.flags.c_contiguous for x in arguments if isinstance(x, np.ndarray))
            run(grid, block, arguments)

        return launch

    return compiles, made


def linked(library, cc):
    from cuda.core import Linker, LinkerOptions, ObjectCode

    code = ObjectCode.from_ptx(library.get_asm_str(cc=cc).encode())
    return Linker(code, options=LinkerOptions(arch=f"sm_{cc[0]}{cc[1]}")).link("cubin").code


def some(names, *kept):
    """`kept` of them; the others in a campaign, since each is compiled and linked for every architecture."""
    return pytest.mark.parametrize(
        "name", [name if name in kept else pytest.param(name, marks=pytest.mark.campaign) for name in names]
    )


@pytest.mark.campaign
@some(ulps.FUNCTIONS, "exp", "ex2")
def test_functions_compile_to_their_instructions(compiling, name):
    compiles, made = compiling
    ulps.measure(compiles, ulps.FUNCTIONS[name], 1_000_003)
    (text,) = made
    assert set(re.findall(r"(?:ex2|lg2)\.approx\S*", text)) == INSTRUCTIONS[name]


@some(ptx.MMA_TYPES, "mma_m16n8k16_f16", "mma_m16n8k32_e4m3_e5m2")
def test_sums_compile(compiling, name):
    compiles, made = compiling
    accumulation.measure(name, probe_mma.multiply_on(compiles))
    assert len(made) == 1 and "mma.sync.aligned" in made[0]


@some(casts.CONVERSIONS, "cvt_f16x2_f32", "store_bfloat16")
def test_casts_compile(compiling, name):
    compiles, made = compiling
    casts.measure(casts.cast_on(compiles, casts.CONVERSIONS[name]))
    assert len(made) == 1


# ---- on a GPU


@pytest.fixture(scope="module")
def measured():
    return calibrate.measure("cuda")


@pytest.mark.gpu
def test_functions_of_a_gpu_keep_what_nvidia_documents(measured):
    """CUDA C++ Programming Guide, mathematical functions, and PTX ISA, ex2: every float32 was tried.

    Documented errors count from the nearest float32, measured ones from the exact result: up to half an ulp more.
    """
    errors = measured.functions
    assert errors["exp"].ulps <= 2 and errors["log"].ulps <= 1
    assert errors["ex2"].ulps <= 2.5 and errors["ex2_ftz"].ulps <= 2.5
    fast = errors["fast_exp"]
    assert fast.ulps <= 3 and fast.ulps + 88 * fast.ulps_per_x <= (2 + 1.173 * 88) * (1 + 2.0**-8)
    assert errors["fast_log"].ulps <= 3.5 and errors["fast_log_near_1"].ulps <= 2.0 ** (22 - 21.41)
    assert all(one.exact and one.tried > 2**24 for one in errors.values())
    assert errors["exp"].tried > 2**31
    assert [name for name, one in errors.items() if one.flushes] == ["ex2_ftz"]


@pytest.mark.gpu
def test_tensor_cores_of_a_gpu_are_as_declared(measured):
    """`emulator.tensor` declares those of Hopper."""
    if measured.compute_capability != (9, 0):
        pytest.skip(f"the declared accumulation is that of compute capability 9.0, not {measured.compute_capability}")
    for name, core in measured.tensor_cores.items():
        c_rounding = "nearest-even" if "k32" in name else None
        assert core == TensorCore(*declared(name), "toward-zero", "toward-zero", c_rounding)
    assert len(measured.tensor_cores) == len(ptx.MMA_TYPES)


@pytest.mark.gpu
def test_casts_of_a_gpu_do_what_they_promise(measured):
    assert list(measured.casts) == had(casts.CONVERSIONS, measured.compute_capability)
    for name, cast in measured.casts.items():
        promised = casts.CONVERSIONS[name].overflow
        assert cast == Cast("nearest-even", False, promised, promised, "nan")
