"""workbench_probe.cuh, compiled by g++: where each macro stores, what it refuses, and what remains of it when off."""

import ctypes
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from workbench import Refusal
from workbench.case.stages import ALGORITHMS
from workbench.foreign.probes import cuda_cpp as probes
from workbench.trace.trace import unwritten

Q, K = np.zeros((2, 3, 20, 24)), np.zeros((2, 1, 40, 24))
HEADER = '#include "workbench_probe.cuh"\n'


#: types of a library of its own: what tells a type is the bits of its 1
TYPES = """
struct bf16 { unsigned short bits; bf16(float x) { unsigned u; std::memcpy(&u, &x, 4); bits = u >> 16; } };
struct e4m3 { unsigned char bits; explicit e4m3(float x) : bits(x == 1 ? 0x38 : 0x3c) {} };  // 1 and 1.5
using uint8 = unsigned char;
"""
#: of each test's kernel, which one block of 64 threads runs
BODIES = {
    "elements": """
        const int q = threadIdx.x;
        if (q < 20) for (int b = 0; b < 2; ++b) for (int h = 0; h < 3; ++h) {
            WB_PROBE(lse, 100.0f * b + 10.0f * h + 1000.0f * q, b, h, q);
            for (unsigned d = 0; d < 24; ++d) WB_PROBE(acc, b + h + q + d / 32.0f, b, h, q, 2, d);
        }""",
    **{
        f"values_of_{ctype}": f"""
        if (threadIdx.x < 40) for (int b = 0; b < 2; ++b) for (int d = 0; d < 24; ++d)
            WB_PROBE(codes_k, {ctype}(d % 2 ? {odd} : 1), b, 0, threadIdx.x, d);"""
        for ctype, odd in (("float", 1.5), ("_Float16", 1.5), ("bf16", 1.5), ("e4m3", 1.5), ("uint8", 3))
    },
    "half_unwritten": "WB_PROBE(lse, _Float16(threadIdx.x), 0, 0, threadIdx.x % 10);",
    # rows 16 to 31 of 20, columns 32 to 47 of 40, of a tile whose rows are padded
    "tile": """
        static float tile[16][17];
        const int r = threadIdx.x / 4, first = threadIdx.x % 4 * 4;
        for (int i = 0; i < 4; ++i) tile[r][first + i] = 100.0f * r + first + i;
        __syncthreads();
        WB_PROBE_TILE(scores, r, 16, c, 16, tile[r][c], 1, 2, 16 + r, 32 + c);
        WB_PROBE_TILE(acc, r, 16, c, 16, tile[r][c], 1, 2, r, 0, 8 + c);
        WB_PROBE_TILE(acc, r, 16, c, 16, -1.0f, 1, 2, 20 + r, 0, c);""",
    # the words of the PTX ISA, for two fragments in one array; warp 1 holds rows 16 to 31 of 20
    "mma": """
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, groupID = lane >> 2, threadID_in_group = lane % 4;
        float x[8];
        for (int n = 0; n < 2; ++n) for (int i = 0; i < 4; ++i) {
            const int row = i < 2 ? groupID : groupID + 8, col = threadID_in_group * 2 + (i & 1);
            x[4 * n + i] = 1000.0f * (16 * warp + row) + 8 * n + col;
        }
        WB_PROBE_FRAGMENT(qk, x, r, c, 0, 1, 16 * warp + r, 24 + c);""",
    "capped": "WB_PROBE(capped, 30.0f, 0, 0, 0, threadIdx.x % 40);",
    "two_stages": "WB_PROBE(lse, 1.0f, 0, 0, threadIdx.x % 20); WB_PROBE(row_max, 2.0f, 0, 0, threadIdx.x % 20, 0);",
}
#: kernels that are refused: algorithm, body, message or how it begins
REFUSED = {
    "acc_rows": (
        "flash",
        "WB_PROBE(acc, 1.0f, 1, 2, threadIdx.x % 32, 1, 0);",
        "probes of acc must stay in [b h q t d] = [2, 3, 20, 3, 24]; 24 stores did not, one of them at b=1, h=2, q=",
    ),
    "negative": (
        "flash",
        "if (threadIdx.x == 5) WB_PROBE(lse, 1.0f, 0, 0, -1);",
        "probes of lse must stay in [b h q] = [2, 3, 20]; 1 stores did not, one of them at b=0, h=0, q=-1",
    ),
    "too_few": (
        "flash",
        "if (threadIdx.x < 8) WB_PROBE(row_max, 1.0f, 0, 0, threadIdx.x);",
        "a probe of row_max takes 4 indices [b h q t]; got 3",
    ),
    "tile_negative": (
        "flash",
        "WB_PROBE_TILE(scores, r, 8, c, 8, 1.0f, 0, 0, r - 4, c);",
        "probes of scores must stay in [b h q k] = [2, 3, 20, 40]; 32 stores did not, one of them at b=0, h=0, q=-",
    ),
    "unknown": (
        "split_k",
        "if (threadIdx.x < 3) WB_PROBE(scoers, 1.0f, 0, 0, 0, 0);",
        "WB_PROBE stored 3 times to stages that split_k does not have; its stages: qk, scores, row_max, correction, "
        "probs, probs_cast, row_sum, acc, partial_max, partial_sum, partial_O, merge_max, merge_weight, merge_sum, "
        "out, lse",
    ),
    "mixed": (
        "flash",
        "if (threadIdx.x == 0) { WB_PROBE(lse, 1.0f, 0, 0, 0); WB_PROBE(lse, _Float16(1), 0, 0, 1); }",
        "probes of lse must store one type; 1 stores had another type",
    ),
    "integer": (
        "flash",
        "WB_PROBE(lse, 1, 0, 0, 0);",
        "a probe of lse must store one of float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, uint8; it stores another type (an integer, say)",
    ),
    "unwritten_codes": (
        "fp8",
        "WB_PROBE(codes_k, (unsigned char)1, 0, 0, threadIdx.x % 40, 0);",
        "1880 of 1920 slots of codes_k were never written, the first at (0, 0, 0, 1)",
    ),
}


@pytest.fixture(scope="module")
def code(on_host: Callable[..., Path]) -> Path:
    """All kernels, compiled at once."""
    bodies = BODIES | {name: body for name, (_, body, _) in REFUSED.items()}
    kernels = "\n".join(f"__global__ void {name}() {{ {body} }}" for name, body in bodies.items())
    return on_host(f"{TYPES}\n{HEADER}\n{kernels}", *bodies)


@pytest.fixture
def probed(code: Path, launch_on_host: Callable[..., None]) -> Callable[..., dict[str, np.ndarray]]:
    """probed(kernel) -> the stages that it stored."""

    def run(kernel: str, algorithm: str = "flash", **options: Any) -> dict[str, np.ndarray]:
        splits = {"splits": 2} if algorithm == "split_k" else {}
        dumps = probes.hand_over(code, algorithm, Q, K, block_k=16, **splits, **options)
        launch_on_host(code, kernel, (1, 1, 1), 64, ())
        return dumps.stages()

    return run


def test_the_layouts_and_names_are_those_of_python(on_host: Callable[..., Path]) -> None:
    code = on_host(
        HEADER
        + 'extern "C" unsigned key_of(const char *name) { return wb::key(name); }\n'
        + 'extern "C" int offset(int i) { const int all[] = {sizeof(wb::Slots), offsetof(wb::Table, slots), '
        + ", ".join(f"offsetof(wb::Table, {name})" for name in probes.HEAD.names or ())
        + ", "
        + ", ".join(f"offsetof(wb::Slots, {name})" for name in probes.SLOTS.names or ())
        + "}; return all[i]; }"
    )
    library = ctypes.CDLL(str(code))
    offsets = [dtype.fields[name][1] for dtype in (probes.HEAD, probes.SLOTS) for name in dtype.names]
    expected = [probes.SLOTS.itemsize, probes.HEAD.itemsize, *offsets]
    assert [library.offset(i) for i in range(len(expected))] == expected
    names = {name for stages in ALGORITHMS.values() for name in stages}
    assert len({probes.key(name) for name in names}) == len(names) > 20
    library.key_of.restype = ctypes.c_uint32
    assert all(library.key_of(name.encode()) == probes.key(name) for name in names)
    assert len(probes.TYPES) == 6


def test_elements_are_where_their_indices_say(probed: Callable[..., dict[str, np.ndarray]]) -> None:
    found = probed("elements")
    assert list(found) == ["acc", "lse"]
    b, h, q, d = np.ogrid[:2, :3, :20, :24]
    assert np.array_equal(found["lse"], (100 * b + 10 * h + 1000 * q)[..., 0]) and found["lse"].dtype == np.float32
    assert np.array_equal(found["acc"][:, :, :, 2], b + h + q + d / 32)
    assert unwritten(found["acc"])[:, :, :, :2].all() and not unwritten(found["acc"])[:, :, :, 2].any()


@pytest.mark.parametrize(
    ("ctype", "dtype", "odd"),
    [
        ("float", np.float32, 1.5),
        ("_Float16", np.float16, 1.5),
        ("bf16", ml_dtypes.bfloat16, 1.5),
        ("e4m3", ml_dtypes.float8_e4m3fn, 1.5),
        ("uint8", np.uint8, 3),
    ],
)
def test_values_keep_their_type(
    probed: Callable[..., dict[str, np.ndarray]], ctype: str, dtype: Any, odd: float
) -> None:
    found = probed(f"values_of_{ctype}", "fp8")["codes_k"]
    assert found.dtype == dtype and found.shape == (2, 1, 40, 24)
    assert (found[..., ::2].astype(float) == 1).all() and (found[..., 1::2].astype(float) == odd).all()


def test_slots_of_16_bits_that_nobody_wrote_are_told(probed: Callable[..., dict[str, np.ndarray]]) -> None:
    found = probed("half_unwritten")["lse"]
    assert found.dtype == np.float16 and unwritten(found).sum() == 2 * 3 * 20 - 10 == np.isnan(found).sum()


def test_a_tile_is_stored_without_what_overhangs(probed: Callable[..., dict[str, np.ndarray]]) -> None:
    """Rows 16 to 31 of 20, columns 32 to 47 of 40, of a tile with a padded row."""
    found = probed("tile")
    r, c = np.ogrid[:16, :16]
    expected = 100 * r + c
    assert np.array_equal(found["scores"][1, 2, 16:, 32:], expected[:4, :8])
    assert (~unwritten(found["scores"])).sum() == 4 * 8
    assert np.array_equal(found["acc"][1, 2, :16, 0, 8:], expected) and (~unwritten(found["acc"])).sum() == 16 * 16


def test_fragments_of_mma_are_where_the_ptx_isa_says(probed: Callable[..., dict[str, np.ndarray]]) -> None:
    """Warp 0 holds rows 0 to 15, warp 1 rows 16 to 31 of 20; two m16n8 fragments in one array."""
    found = probed("mma")["qk"]
    r, c = np.ogrid[:20, :16]
    assert np.array_equal(found[0, 1, :, 24:], 1000 * r + c) and (~unwritten(found)).sum() == 20 * 16


def test_capped_scores_are_stored_of_a_run_with_a_softcap(probed: Callable[..., dict[str, np.ndarray]]) -> None:
    found = probed("capped", softcap=50.0)
    assert list(found) == ["capped"] and np.all(found["capped"][0, 0, 0] == 30) and unwritten(found["capped"]).sum() > 0
    with pytest.raises(Refusal) as refusal:
        probed("capped")
    assert str(refusal.value).startswith(
        "WB_PROBE stored 64 times to stages that flash does not have; its stages: qk, scores, "
    )


@pytest.mark.parametrize("kernel", list(REFUSED))
def test_what_a_probe_may_not_do_is_refused(probed: Callable[..., dict[str, np.ndarray]], kernel: str) -> None:
    algorithm, _, message = REFUSED[kernel]
    with pytest.raises(Refusal) as refusal:
        probed(kernel, algorithm)
    said = str(refusal.value)
    assert said.startswith(message) if message.endswith(("=", "=-")) else said == message


def test_a_wrong_index_touches_no_memory(code: Path, launch_on_host: Callable[..., None]) -> None:
    dumps = probes.hand_over(code, "flash", Q, K, block_k=16)
    launch_on_host(code, "negative", (1, 1, 1), 64, ())
    with pytest.raises(Refusal, match="1 stores did not"):
        dumps.stages()
    assert all((words.read() == probes.UNWRITTEN).all() for words in dumps.words.values())


def test_stages_that_nobody_asked_for_are_not_stored(probed: Callable[..., dict[str, np.ndarray]]) -> None:
    assert list(probed("two_stages", stages="row_max")) == ["row_max"]
    assert list(probed("two_stages", stages="output")) == ["lse"]


def test_code_without_a_table_stores_nothing(code: Path, launch_on_host: Callable[..., None]) -> None:
    launch_on_host(code, "two_stages", (1, 1, 1), 64, ())  # before one was handed over
    dumps = probes.hand_over(code, "flash", Q, K, block_k=16)
    assert dumps.stages() == {}
    launch_on_host(code, "two_stages", (1, 1, 1), 64, ())  # and after it was read
    assert all((words.read() == probes.UNWRITTEN).all() for words in dumps.words.values())


def test_buffers_are_read_once_and_live_as_long_as_code_points_to_them(
    code: Path, launch_on_host: Callable[..., None]
) -> None:
    first = probes.hand_over(code, "flash", Q, K, block_k=16)
    words = weakref.ref(first.words["lse"])
    second = probes.hand_over(code, "flash", Q, K, block_k=16)
    message = "these buffers were already read, or replaced by others handed to the same code"
    with pytest.raises(Refusal, match=message):
        first.stages()
    del first
    launch_on_host(code, "two_stages", (1, 1, 1), 64, ())
    assert words() is None and list(second.stages()) == ["row_max", "lse"]
    with pytest.raises(Refusal, match=message):
        second.stages()
    words = weakref.ref(probes.hand_over(code, "flash", Q, K, block_k=16).words["lse"])  # nobody keeps these
    launch_on_host(code, "two_stages", (1, 1, 1), 64, ())
    kept = words()
    assert kept is not None and (kept.read() != probes.UNWRITTEN).sum() == 20


def test_types_that_are_no_stage_are_refused_by_the_compiler(on_host: Callable[..., Path]) -> None:
    with pytest.raises(RuntimeError, match="a probe stores float, half, bfloat16, float8 or uint8"):
        on_host(HEADER + "__global__ void kernel() { WB_PROBE(lse, 1.0, 0, 0, 0); }", "kernel")
    with pytest.raises(RuntimeError, match="a stage has at most five axes"):
        on_host(HEADER + "__global__ void kernel() { WB_PROBE(lse, 1.0f, 0, 0, 0, 0, 0, 0); }", "kernel")


def test_nothing_is_left_of_probes_that_are_off(on_host: Callable[..., Path]) -> None:
    body = "if (threadIdx.x) WB_PROBE(lse, x, 0); else WB_PROBE_TILE(a, r, 1, c, 1, x, r); WB_PROBE_FRAGMENT(b, x, r, c, r);"
    code = on_host(HEADER + f"__global__ void kernel() {{ {body} }}", "kernel", probed=False)
    with pytest.raises(Refusal) as refusal:
        probes.hand_over(code, "flash", Q, K, block_k=16)
    assert str(refusal.value) == (f"{code} holds no probes: compile it with -DWB_PROBES and -I{probes.include_dir()}")


@pytest.mark.campaign
def test_every_translation_unit_of_nvcc_gets_the_table(on_host: Callable[..., Path]) -> None:
    """nvcc's own pointers, each in its unit: cudaMemcpyToSymbol is memcpy here."""
    runtime = (
        "#define __CUDACC__\n"
        "template <class T> int cudaMemcpyToSymbol(T &symbol, const void *from, std::size_t n)"
        " { std::memcpy(&symbol, from, n); return 0; }\n"
    )
    units = [
        on_host(f'{runtime}{HEADER}extern "C" void *seen_by_{name}() {{ return wb::wb_probe_table; }}') for name in "ab"
    ]
    libraries = [ctypes.CDLL(str(unit), mode=ctypes.RTLD_GLOBAL) for unit in units]
    for library, name in zip(libraries, "ab", strict=True):
        getattr(library, f"seen_by_{name}").restype = ctypes.c_void_p
    assert libraries[0].seen_by_a() is None and libraries[1].seen_by_b() is None
    assert libraries[0].wb_probe_hand_over(ctypes.c_void_p(4096)) == 0
    assert (libraries[0].seen_by_a(), libraries[1].seen_by_b()) == (4096, 4096)
