"""FlexAttention's functions of single scores, evaluated on whole arrays: score_mod(score, b, h, q_idx, kv_idx) and
mask_mod(b, h, q_idx, kv_idx) (Dong et al. 2024, arXiv 2412.05496, section 3).

What they are written for are tensors of torch of no dimension, which broadcasting makes of arrays as well. A function
that NumPy's arrays do not suit is given tensors, in float64 and int64.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from workbench.case import user_code
from workbench.case.fields import name_of
from workbench.extras import needed
from workbench.refusal import Refusal


def function_of(mod: str | Callable[..., Any], field: str) -> Callable[..., Any]:
    """The function that a field of a case is, or names as path.py:name or module:name; Refusal where there is none. A
    file is loaded as of `user_code.function_of`.
    """
    if not isinstance(mod, str):
        return mod
    path, _, name = mod.rpartition(":")
    if path.endswith(".py"):
        if not Path(path).is_file():
            raise Refusal(f"{field}={mod}: no such file: {path}")
        try:
            return user_code.function_of(Path(path), name)
        except Refusal as refusal:
            raise Refusal(f"{field}={mod}: {refusal}") from None
    try:
        module = importlib.import_module(path)
    except Exception as error:  # the user's own
        raise Refusal(f"{field}={mod}: {path} could not be imported: {type(error).__name__}: {error}") from None
    if not callable(found := getattr(module, name, None)):
        raise Refusal(f"{field}={mod}: {path} has no function {name}")
    return found


@contextmanager
def running(**mods: Any) -> Iterator[None]:
    """Within it somebody else calls these functions, given by field, which may import from the folders of their files;
    None is a field that a case does not have.
    """
    with ExitStack() as stack:
        for field, mod in mods.items():
            if mod is not None:
                stack.enter_context(user_code.running(function_of(mod, field)))
        yield


def evaluated(mod: Any, field: str, indices: Sequence[np.ndarray], score: np.ndarray | None = None) -> np.ndarray:
    """What a function makes of indices of batches, heads, queries and keys, which broadcast to [b, h, q, k], and of
    scores of that shape where it takes some; of that shape. Refusal where it raises, or returns anything else.
    """
    function, name = function_of(mod, field), name_of(mod)
    shape = np.broadcast_shapes(*(x.shape for x in indices))
    given = indices if score is None else (score, *indices)
    try:
        with np.errstate(all="ignore"), user_code.running(function):
            try:
                found = np.asarray(function(*given))
            except Exception:
                if "torch" not in sys.modules:
                    raise
                found = _in_torch(function, given)
        return np.broadcast_to(found, shape)
    except Exception as error:  # the user's own
        takes = ", ".join((*(["score"] if score is not None else []), "b", "h", "q_idx", "kv_idx"))
        raise Refusal(
            f"{field}={name} is called with ({takes}), arrays that broadcast to {list(shape)}, and must return such an "
            f"array: {type(error).__name__}: {error}"
        ) from None


def derivative(mod: Any, field: str, indices: Sequence[np.ndarray], score: np.ndarray) -> np.ndarray:
    """What a function makes of scores [b, h, q, k] grows by with each score, float64: its derivative by torch's
    autograd, exact but for the roundings of float64; 0 of a function that reads no score. Unavailable without torch,
    Refusal where the function does not run on its tensors, or leaves them on the way.
    """
    function, name = function_of(mod, field), name_of(mod)
    with needed(f"{field}={name}: its derivative needs", "torch"):
        import torch
    leaf = torch.from_numpy(np.array(score, np.float64)).requires_grad_()
    try:
        with user_code.running(function):
            made = function(leaf, *(torch.from_numpy(np.ascontiguousarray(x)) for x in indices))
        total = torch.broadcast_to(torch.as_tensor(made), leaf.shape).sum()
        if not total.requires_grad:
            return np.zeros(leaf.shape)
        (found,) = torch.autograd.grad(total, leaf)
    except Exception as error:  # the user's own
        raise Refusal(
            f"{field}={name}: its derivative needs torch's autograd, which must see every operation: "
            f"{type(error).__name__}: {error}"
        ) from None
    made_of: np.ndarray = found.numpy()
    return made_of


def _in_torch(function: Callable[..., Any], given: Sequence[np.ndarray]) -> np.ndarray:
    """The same with tensors."""
    import torch

    found: np.ndarray = torch.as_tensor(function(*(torch.from_numpy(np.ascontiguousarray(x)) for x in given))).numpy()
    return found
