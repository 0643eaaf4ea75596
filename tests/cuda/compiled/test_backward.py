"""The backward kernels as numba.cuda compiles them for Hopper, without a GPU."""

import re

import pytest
from numba import typeof, types
from numba.cuda import compiler

from tests.cuda.compiled.builds import REGISTERS, linked, registers_of, shared_of
from tests.cuda.compiled.test_plain_builds import stripped_source
from workbench.cuda.build import build
from workbench.cuda.kernel import DYNAMIC_SHARED, STATIC_SHARED
from workbench.cuda.kernels import OF_OPERATIONS
from workbench.operations.case import OperationCase
from workbench.operations.every import OPERATIONS

HOPPER = (9, 0)


def work_of(name, dtype, dim, probes):
    case = OperationCase(OPERATIONS["attention_backward"], {"dim": dim, "dim_v": dim, "queries": 8, "keys": 8}, dtype)
    return OF_OPERATIONS[name].work(case.inputs(), case.numbers, probes)


def libraries(name, dtype, dim, probes):
    """Those of the functions of a kernel, and the shared memory of their blocks."""
    work = work_of(name, dtype, dim, probes)
    values = {**work.scalars, **work.arrays}
    for function, _, _ in work.launches:
        made = build(OF_OPERATIONS[name].functions[function], function, work.constants, probes, ())
        typed = types.void(*(typeof(values[one]) for one in (*made.parameters, *made.probes)))
        options = {"device": False, "abi": "numba", "cc": HOPPER, **made.cuda_options}
        yield function, compiler._compile_pyfunc_with_fixup(made.for_numba, typed, **options)[0], work.constants


RUNS = [(name, dtype) for dtype in ("bfloat16", "float32", "float16") for name in OF_OPERATIONS]


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(("name", "dtype"), [run for run in RUNS if run[1] in OF_OPERATIONS[run[0]].dtypes])
@pytest.mark.parametrize("probed", [True, False])
def test_it_links_within_the_registers_of_a_block(name, dtype, probed):
    probes = OF_OPERATIONS[name].dumped(dtype) if probed else ()
    seen = []
    for function, library, constants in libraries(name, dtype, 128, probes):
        _, log = linked(library, HOPPER)
        assert 0 < registers_of(log) * constants.threads <= REGISTERS
        if dynamic := OF_OPERATIONS[name].dynamic_bytes(constants, function):
            assert shared_of(log) == constants.static_bytes and dynamic + constants.static_bytes <= DYNAMIC_SHARED
        else:
            assert shared_of(log) <= min(constants.shared_bytes, STATIC_SHARED)
        text = library.get_asm_str(cc=HOPPER)
        adds = re.search(r"(red|atom)\.global\.add\.(v4\.)?f32", text) is not None
        assert adds == (name != "backward" and function in ("backward_keys", "backward_mma_keys"))
        assert ("mma.sync" in text) == (function == "backward_mma_keys")
        assert probed or ".local" not in text  # registers alone
        seen.append(function)
    assert seen == [*OF_OPERATIONS[name].functions]


@pytest.mark.parametrize("name", OF_OPERATIONS)
@pytest.mark.parametrize("dim", [32, 128])
def test_plain_build_is_the_same_bytecode_as_a_source_without_probe_lines(name, dim):
    work = work_of(name, "bfloat16", dim, ())
    own = OF_OPERATIONS[name].file
    for function in (one for one, file in OF_OPERATIONS[name].functions.items() if file == own):
        actual = build(own, function, work.constants, (), ()).for_numba.__code__
        expected = stripped_source(own, function, work.constants).__code__
        assert len(expected.co_code) > 300 and [*actual.co_lines()] == [*expected.co_lines()]
        for part in ("co_code", "co_consts", "co_names", "co_varnames", "co_argcount"):
            assert getattr(actual, part) == getattr(expected, part)
    [keys] = [function for function in OF_OPERATIONS[name].functions if "keys" in function]
    plain, probed = (
        build(own, keys, work.constants, probes, ()).for_numba.__code__
        for probes in ((), OF_OPERATIONS[name].dumped("bfloat16"))
    )
    assert len(probed.co_code) > len(plain.co_code)
