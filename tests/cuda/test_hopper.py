"""Every operation of `workbench.cuda.hopper`: what it compiles to, and what it refuses."""

import re
from types import SimpleNamespace

import pytest
from cuda.core import Linker, LinkerOptions, ObjectCode
from numba import cuda, float32, int16, types, uint32, uint64
from numba.core.errors import TypingError
from numba.cuda import dispatcher

from workbench.cuda import hopper
from workbench.cuda.cubin import _with_maps

_BARRIERS = """
    hopper.mbarrier_init(bars, 1, 4)
    hopper.fence_barrier_init()
    hopper.mbarrier_arrive(bars, 1)
    hopper.mbarrier_expect_tx(bars, 1, 4096)
    hopper.mbarrier_wait(bars, 1, n & 1)
    hopper.cp_async_bulk_tensor(tiles, 64, x, 0, (0, 1, n, 64), 32, bars, 1)
    hopper.cp_async_bulk_tensor(tiles, 64, x, 1, (0, 1, n, 64), 32, bars, 1)
    hopper.fence_async_shared()
    hopper.set_max_registers_dec(24)
    hopper.set_max_registers_inc(240)
    hopper.named_barrier(n, 128)
    hopper.named_barrier_arrive(2, 128)
"""
#: what is emitted, in this order
_TEXTS = (
    r"mbarrier\.init\.shared::cta\.b64 \[%r\d+\], %r\d+;",
    r"fence\.mbarrier_init\.release\.cluster; fence\.proxy\.async\.shared::cta;",
    r"mbarrier\.arrive\.shared::cta\.b64 _, \[%r\d+\];",
    r"mbarrier\.arrive\.expect_tx\.shared::cta\.b64 _, \[%r\d+\], %r\d+;",
    r"mbarrier\.try_wait\.parity\.shared::cta\.b64 p, \[%r\d+\], %r\d+; @p bra DONE; bra AGAIN;",
    r"mov\.b64 m, tensor_map_0; cvta\.param\.u64 m, m; cp\.async\.bulk\.tensor\.4d\.shared::cluster\.global\.tile\."
    r"mbarrier::complete_tx::bytes \[%r\d+\], \[m, \{%r\d+, %r\d+, %r\d+, %r\d+\}\], \[%r\d+\];",
    r"mov\.b64 m, tensor_map_1;",
    r"fence\.proxy\.async\.shared::cta;",
    r"setmaxnreg\.dec\.sync\.aligned\.u32 24;",
    r"setmaxnreg\.inc\.sync\.aligned\.u32 240;",
    r"bar\.sync %r\d+, %r\d+;",
    r"bar\.arrive %r\d+, %r\d+;",
    r"wgmma\.fence\.sync\.aligned;",
    r"wgmma\.commit_group\.sync\.aligned;",
    r"wgmma\.wait_group\.sync\.aligned 1;",
)


def _product(name):
    """A call of a product, and a pattern of what it emits."""
    shape, kind, suffix = re.fullmatch(r"wgmma_(m64n\d+k\d+)_(\w+?)(|_rs|_trans|_rs_trans)", name).groups()
    a = "p, 4" if "rs" in suffix else "tiles, 64"
    leading = ", 2048" if "trans" in suffix else ""
    sums = ", ".join([r"%f\d+"] * (int(re.search(r"n(\d+)", shape)[1]) // 2))
    operands = r"\{%r\d+, %r\d+, %r\d+, %r\d+\}, %rd\d+" if "rs" in suffix else r"%rd\d+, %rd\d+"
    order = {"": ", 0, 0", "_trans": ", 0, 1", "_rs": ", 0", "_rs_trans": ", 1"}[suffix] if kind != "e4m3" else ""
    text = rf"wgmma\.mma_async\.sync\.aligned\.{shape}\.f32\.{kind}\.{kind} \{{{sums}\}}, {operands}, p, 1, 1{order};"
    return f"    hopper.{name}(acc, {a}, tiles, 128{leading}, n)\n", text


def compiled(body):
    """PTX of a kernel with that body, its tensor maps declared."""
    head = (
        "def kernel(x, out, n):\n"
        "    tiles = cuda.shared.array(0, int16, alignment=1024)\n"
        "    bars = cuda.shared.array(2, uint64)\n"
        "    acc, p = cuda.local.array(64, float32), cuda.local.array(8, uint32)\n"
        "    for i in range(64):\n        acc[i] = float32(i)\n"
        "    for i in range(8):\n        p[i] = uint32(i)\n"
    )
    tail = "    for i in range(64):\n        out[cuda.threadIdx.x, i] = acc[i]\n"
    space = dict(cuda=cuda, hopper=hopper, int16=int16, uint32=uint32, uint64=uint64, float32=float32)
    exec(head + body + tail, space)
    typed = types.void(types.Array(types.float16, 4, "C"), types.Array(types.float32, 2, "C"), types.int32)
    ptx, _ = cuda.compile(space["kernel"], typed, device=False, abi="numba", cc=(9, 0), output="ptx")
    return _with_maps(ptx, 2)


@pytest.fixture(scope="module")
def ptx():
    """All operations in one kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=(9, 0)))
        waits = "    hopper.wgmma_fence(acc, 64)\n{}    hopper.wgmma_commit()\n    hopper.wgmma_wait(1, acc, 64)\n"
        return compiled(_BARRIERS + waits.format("".join(_product(name)[0] for name in hopper.PRODUCTS)))


def test_each_operation_is_the_instruction_that_it_says(ptx):
    at = 0
    for text in _TEXTS[:-2]:
        found = re.compile(text).search(ptx, at)
        assert found, text
        at = found.end()
    for name in hopper.PRODUCTS:
        found = re.compile(_product(name)[1]).search(ptx, at)
        assert found, name
        at = found.end()
    assert re.search(_TEXTS[-2], ptx[at:]) and re.search(_TEXTS[-1], ptx[at:])
    called = {*re.findall(r"hopper\.(\w+)\(", _BARRIERS), *hopper.PRODUCTS, "wgmma_fence", "wgmma_commit", "wgmma_wait"}
    assert called == {*hopper.OPERATIONS}


def test_it_assembles_for_hopper_alone(ptx):
    assert ".target sm_90a" in ptx and ptx.count(".param .align 64 .b8 tensor_map_") == 2
    linked = Linker(ObjectCode.from_ptx(ptx.encode()), options=LinkerOptions(arch="sm_90a")).link("cubin")
    assert linked.code[:4] == b"\x7fELF"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("hopper.wgmma_wait(n, acc, 64)", "wgmma_wait: n must be a constant and not negative, not int"),
        ("hopper.wgmma_fence(acc, n)", "wgmma_fence: count must be a constant and not negative, not int"),
        ("hopper.set_max_registers_inc(n)", "set_max_registers_inc: n must be a constant"),
        ("hopper.mbarrier_arrive(tiles, 0)", "mbarrier_arrive: barriers are uint64, not int16"),
        ("hopper.mbarrier_arrive(bars, (0, 1))", "mbarrier_arrive: UniTuple"),
        ("hopper.cp_async_bulk_tensor(tiles, 0, x, n, (0, 0, 0, 0), 32, bars, 0)", "map must be a constant"),
        ("hopper.wgmma_m64n64k16_f16(p, tiles, 0, tiles, 0, 1)", "acc must be of float32, not uint32"),
        ("hopper.wgmma_m64n64k16_f16_rs(acc, acc, 0, tiles, 0, 1)", "a must be of uint32, not float32"),
        ("hopper.wgmma_m64n64k16_f16_rs_trans(acc, p, 0, tiles, 0, n, 1)", "leading must be a constant"),
    ],
)
def test_what_is_not_an_operand_is_a_typing_error(call, words):
    with pytest.raises(TypingError, match=re.escape(words)):
        compiled(f"    {call}\n")
