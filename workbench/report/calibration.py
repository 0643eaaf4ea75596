"""A calibration as a table, beside what is assumed of every machine."""

from typing import Any

from workbench.case.contract import EX2_ULPS, FAST_EXP_ULPS, FAST_EXP_ULPS_PER_X, Contract
from workbench.cuda.calibrate.casts import CONVERSIONS
from workbench.cuda.calibrate.record import EXPONENTIALS, OTHER, Calibration, Cast, Errors, TensorCore, bound_ulps
from workbench.cuda.calibrate.ulps import FUNCTIONS
from workbench.reference.losses import FAST_LOG, FAST_LOG_ULPS, LOG_ULPS

COLUMNS = ("what", "measured", "assumed", "remark")
#: ulps and ulps_per_x that budgets allow for
ASSUMED = {
    **dict.fromkeys(EXPONENTIALS, (EX2_ULPS, 0.0)),
    "exp": (Contract.exp_ulps, 0.0),
    "fast_exp": (FAST_EXP_ULPS, FAST_EXP_ULPS_PER_X),
    "log": (LOG_ULPS, 0.0),
    "fast_log": (FAST_LOG_ULPS, 0.0),
    "fast_log_near_1": (FAST_LOG * 2.0**22, 0.0),
}


def headline(calibration: Calibration) -> str:
    """Which machine it is, in a line."""
    capability, driver = calibration.compute_capability, calibration.driver
    gpu = f", compute capability {capability[0]}.{capability[1]}, driver for CUDA {driver}" if capability else ""
    tried = sum(errors.tried for errors in calibration.functions.values())
    return f"{calibration.device}{gpu}: {tried:.2g} function results, all neighbours of each cast target"


def rows(calibration: Calibration) -> list[dict[str, Any]]:
    """A row for each thing that was measured, with the keys of `COLUMNS`."""
    found = [_of_function(name, errors) for name, errors in calibration.functions.items()]
    found += [_of_tensor_core(name, core) for name, core in calibration.tensor_cores.items()]
    found += [_of_cast(name, cast) for name, cast in calibration.casts.items()]
    return [dict(zip(COLUMNS, cells, strict=True)) for cells in found]


def _of_function(name: str, errors: Errors) -> tuple[str, ...]:
    unit = "x 2^-22" if FUNCTIONS[name].unit else "ulp"

    def size(ulps: float, ulps_per_x: float) -> str:
        return f"{ulps:.3g} + {ulps_per_x:.4g} |x| {unit}" if ulps_per_x else f"{ulps:.3g} {unit}"

    ulps, ulps_per_x = ASSUMED[name]
    subnormals = {None: "", True: ", subnormals are 0", False: ", subnormals are kept"}[errors.flushes]
    worse = not (errors.ulps <= ulps and errors.ulps_per_x <= ulps_per_x)
    remark = "<- worse" if worse else "" if errors.exact else "<- not exact at 0, -inf or log(1)"
    return (
        FUNCTIONS[name].summary,
        size(errors.ulps, errors.ulps_per_x) + subnormals,
        size(ulps, ulps_per_x) + (", or 0 for subnormals" if name in EXPONENTIALS else ""),
        remark,
    )


def _of_tensor_core(name: str, core: TensorCore) -> tuple[str, ...]:
    assumed = Contract.mma_block, Contract.mma_extra_bits
    roundings = list(dict.fromkeys([core.addend_rounding, core.sum_rounding]))
    worse = OTHER in (*roundings, core.c_rounding) or bound_ulps(core.block, core.extra_bits) > bound_ulps(*assumed)
    c = f", c last, {core.c_rounding}" if core.c_rounding else ""
    measured = f"{core.block} products a step, {core.extra_bits} extra bits, {' and '.join(roundings)}{c}"
    return name, measured, f"{assumed[0]} products a step, {assumed[1]} extra bits", "<- worse" if worse else ""


def _of_cast(name: str, cast: Cast) -> tuple[str, ...]:
    promised = CONVERSIONS[name].overflow
    assumed = Cast("nearest-even", False, promised, promised, "nan")

    def words(cast: Cast) -> str:
        beyond = "/".join(dict.fromkeys([cast.overflow, cast.infinity]))
        nan = "" if cast.nan == "nan" else f", NaN: {cast.nan}"
        return f"{cast.rounding}{', subnormals are 0' if cast.flushes else ''}, overflow gives {beyond}{nan}"

    return name, words(cast), words(assumed), "" if cast == assumed else "<- differs"
