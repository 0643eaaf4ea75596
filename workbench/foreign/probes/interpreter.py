"""What Triton's interpreter, which runs kernels on the CPU where TRITON_INTERPRET=1, must not be asked."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from workbench.refusal import Refusal

#: the end of what Triton raises where it finds no GPU, and what to do then
NO_GPU = "0 active drivers ([]). There should only be one."
HINT = "Without a GPU, Triton's interpreter runs its kernels on the CPU: set TRITON_INTERPRET=1 in the environment."


@contextmanager
def guarded() -> Iterator[None]:
    """Within it, an interpreted kernel is refused that is launched on bfloat16 or float8 tensors, or asks for the truth
    of several elements.

    The interpreter computes on raw bits: with Triton 3.6 and 3.7 a `tl.dot` of 16 bfloat16 products 1.5 * 1.5 is
    4261478400 in place of 36, and 1.5 * 1.5 + 1 in float8_e4m3fn is 1.625 in place of 3.25. Of `rows < M and cols < N`,
    which compiled kernels evaluate element by element, it takes the second alone, as Python does.
    """
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")
    if interpreter is None:
        yield
        return
    launch = interpreter.GridExecutor.__call__

    def checked(executor: Any, *args: Any, **options: Any) -> Any:
        for name, x in [*zip(executor.arg_names, args, strict=False), *options.items()]:
            dtype = str(getattr(x, "dtype", None)).removeprefix("torch.")
            if dtype == "bfloat16" or dtype.startswith("float8"):
                raise Refusal(
                    f"Triton's interpreter computes on the raw bits of bfloat16 and float8; {executor.fn.__name__} got "
                    f"{name} in {dtype}: use --dtype float32 or float16, or a GPU without TRITON_INTERPRET"
                )
        try:
            return launch(executor, *args, **options)
        except interpreter.InterpreterError as error:
            if isinstance(error.__cause__, Refusal):
                raise error.__cause__ from None
            raise

    language = interpreter._patch_lang_tensor

    def with_truths_of_one(tensor: Any, *scope: Any) -> None:
        language(tensor, *scope)
        truth = tensor.__bool__

        def of_one(self: Any) -> bool:
            asks = sys._getframe(1).f_globals.get("__name__", "")  # `tl.load` asks whether there is a mask
            if self.handle.data.size > 1 and not asks.startswith("triton."):
                raise Refusal(
                    "Triton's interpreter takes the second operand alone of `a and b`, the first of `a or b`, of "
                    f"tensors, here of shape {self.handle.data.shape}: write `a & b`, `a | b`, or run on a GPU without "
                    "TRITON_INTERPRET"
                )
            return bool(truth(self))

        tensor.__bool__ = of_one

    with (
        patch.object(interpreter.GridExecutor, "__call__", checked),
        patch.object(interpreter, "_patch_lang_tensor", with_truths_of_one),
    ):
        yield
