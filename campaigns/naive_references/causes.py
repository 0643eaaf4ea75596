"""Which causes are named of the wrong kernels, beside the truth; and with the family of the truth left out."""

from collections.abc import Collection, Mapping
from typing import Any

from workbench.judge.reference.causes.cause import Explained
from workbench.judge.reference.causes.search import explain
from workbench.judge.reference.diff import ReferenceDiff
from workbench.work import SEARCH, Work

#: file and function, without _staged -> what the words of a right cause hold, and the families that have it
TRUE: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "block_gemm.wrong_int8_min": (("line 6", "-127"), ("clamp",)),
    "block_gemm.wrong_scale_index": (("b_scale", "the element before it"), ("places",)),
    "block_gemm.wrong_acc_fp16": (("out", "float16", "tiles of 32"), ("cast",)),
    "cross_entropy.wrong_total_fp16": (("total", "float16", "tiles of 32"), ("cast",)),
    "cross_entropy.wrong_smoothing": (("line 15", "176 / 175"), ("factor",)),
    "cross_entropy.wrong_label_tile": (("target", "last, partial tile of 64"), ("left out",)),
    "gla.wrong_state_fp16": (("state", "float16", "each 16"), ("cast",)),
    "gla.wrong_gate": (("decay", "each 16"), ("factor", "left out")),
    "gla.wrong_mask": (("state leaves out k * v", "out only"), ("operand", "left out")),
    "layer_norm_backward.wrong_var": (("var", "767"), ("constant", "factor")),
    "layer_norm_backward.wrong_c2": (("dxhat * xhat", "last term"), ("part", "places")),
    "layer_norm_backward.wrong_rows": (("dweight", "partial tile of 8"), ("part", "places")),
    "moe_gate.wrong_eps": (("sum of top", "1e-05"), ("offset",)),
    "moe_gate.wrong_index": (("indices", "last tile of 16: 48 is missing"), ("offset",)),
    "moe_gate.wrong_last": (("sum of top", "last term"), ("part", "places")),
    "flashkda_16.wrong": (("k * state", "last term"), ("part", "places")),
    "helion_3264.wrong": (("sum over 1000", "last term"), ("part",)),
    "hipkittens_64.wrong": (("a @ b", "last term"), ("part", "places")),
    "pypto_1945.wrong": (("sum", "last term"), ("part", "places")),
    "rocm_11787.wrong": (("x32^2", "last term"), ("part", "places")),
    "rocm_4556.wrong": (("product", "last term"), ("part", "places")),
    "sglang_28226.wrong": (("reduced", "last term", "at 2047 of 2048"), ("part", "places")),
    "sglang_35795.wrong": (("x * x", "last term"), ("part", "places")),
    "vllm_51083.wrong": (("sin has, last of axis 1", "the element before it"), ("places",)),
}


def key(file: str, function: str) -> str:
    """Of TRUE."""
    return f"{file.rpartition('/')[2].removesuffix('.py')}.{function.removesuffix('_staged')}"


def named(found: Explained, file: str, function: str) -> str:
    """named, or among those that fit; perhaps where too few elements prove it; false; unknown where none is named."""
    words = TRUE[key(file, function)][0]
    said = [[all(word in name.text for word in words) for name in cause.names] for cause in found.causes]
    if not said:
        return "unknown"
    if any(one[0] for one in said):
        return "named" if all(cause.proved for cause in found.causes) else "perhaps"
    return "among" if any(map(any, said)) else "false"


def without_truth(judged: ReferenceDiff, file: str, function: str) -> tuple[str, str]:
    """unknown, or false, where no family that is tried has the truth; and the words of what is named then."""
    left_out: Collection[str] = TRUE[key(file, function)][1]
    found = explain(judged.scene, Work(SEARCH), left_out)
    words = "; ".join(cause.names[0].text for cause in found.causes)
    return ("false" if words else "unknown"), words


def row(judged: ReferenceDiff, file: str, function: str) -> dict[str, Any]:
    """What is said of a wrong run: by a report, by a longer search, and without the truth's family."""
    if judged.origin is None:
        return {"report": "no origin", "explain": "no origin", "words": "", "without": "no origin", "without_words": ""}
    without, words = without_truth(judged, file, function)
    longer = judged.explain()
    return {
        "report": named(judged.explained, file, function),
        "explain": named(longer, file, function),
        "words": "; ".join(cause.names[0].text for cause in longer.causes),
        "without": without,
        "without_words": words,
    }
