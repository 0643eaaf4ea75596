"""Arrays of the arena as the function takes them: views of its memory, or of a copy of it on a GPU."""

import mmap
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

#: copies of what is left in freed memory: an allocator gives the last one, or one of its size, or the next
COPIES = 3


@dataclass(frozen=True, eq=False)
class Handed:
    """What was handed over, which lies at the same addresses in each call."""

    memory: mmap.mmap
    #: arrays that lie otherwise than the arena's, by name and shape: the same addresses in each call
    kept: dict[tuple[str, tuple[int, ...], str], Any] = field(default_factory=dict)
    bytes_there: list[Any] = field(default_factory=list)  #: of the arena, as a tensor of torch; on a GPU a copy
    #: tensors of it, by where they lie: the same ones for each call whose inputs lie so, as of who refills them
    tensors: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    fetched: list[tuple[int, int]] = field(default_factory=list)  #: first byte and end of inputs, on a GPU

    def there(self, view: Any, arrays: str, device: str) -> Any:
        """An array of the arena, in its memory, or in a copy of all of it on a GPU."""
        from workbench.arrays import handed_over, module

        if arrays != "torch":
            return handed_over(view, arrays, device)
        import numpy as np

        torch = module("torch")
        base = np.frombuffer(self.memory, np.uint8)
        at = view.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        if not self.bytes_there:
            here = torch.from_numpy(base)
            self.bytes_there.append(here if device == "cpu" else torch.empty_like(here, device=device))
        end = at + sum((n - 1) * step for n, step in zip(view.shape, view.strides, strict=True)) + view.itemsize
        if device != "cpu":
            aligned = at // 256 * 256 - 256  # with the poison before it
            behind = end + 256
            self.bytes_there[0][aligned:behind].copy_(torch.from_numpy(base[aligned:behind]))
            self.fetched.append((aligned, behind))
        strides = tuple(step // view.itemsize for step in view.strides)
        key = (at, view.shape, strides, view.dtype.name)
        made = self.tensors.get(key)
        # whoever has it may turn it, or have gradients recorded
        if made is None or (made.shape, made.stride()) != (view.shape, strides) or made.requires_grad:
            typed = self.bytes_there[0][at:end].view(getattr(torch, view.dtype.name))
            made = self.tensors[key] = typed.as_strided(view.shape, strides)
        return made

    def back(self) -> None:
        """What the call made of its inputs on a GPU, into the arena."""
        import numpy as np

        base = np.frombuffer(self.memory, np.uint8)
        for start, end in self.fetched:
            base[start:end] = self.bytes_there[0][start:end].cpu().numpy()
        self.fetched.clear()

    def kept_at(self, name: str, x: Any, arrays: str, device: str) -> Any:
        """An array at the address at which the last one of its name and shape was, where the library has addresses."""
        from workbench.arrays import handed_over

        key = (name, x.shape, x.dtype.name)
        made = handed_over(x.copy(), arrays, device)
        if arrays == "jax":
            return made
        if key in self.kept:
            self.kept[key][...] = made
        return self.kept.setdefault(key, made)

    def leave(self, blocks: list[list[Any]], arrays: str, device: str) -> None:
        """Free blocks of the allocator that hold what is asked for: what a function does not write shows."""
        import numpy as np

        from workbench.arrays import handed_over
        from workbench.explore.acceptance.arena import Place

        if arrays == "jax":
            return
        held = []
        for place in blocks:
            made = handed_over(np.array(Place(*place).view(self.memory)), arrays, device)
            held += [made.clone() if arrays == "torch" else made.copy() for _ in range(COPIES)]
        del held


def recorded(on: bool, arrays: str) -> AbstractContextManager[None]:
    """With autograd's records, or without, as models train and infer."""
    if arrays != "torch":
        return nullcontext()
    from workbench.arrays import module

    found: AbstractContextManager[None] = module("torch").set_grad_enabled(on)
    return found


def as_a_caller_reads(x: Any) -> Any:
    """A result of torch as the stream on which the function was called reads it, which waits for no other stream; what
    is no tensor as it is. Refusal of tensors that may compute when they are read.
    """
    from workbench.refusal import Refusal

    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor):
        return x
    if type(x) not in (torch.Tensor, torch.nn.Parameter):
        raise Refusal(f"a result must be a torch.Tensor, not of its subclass {type(x).__qualname__:.40}")
    return x.detach().clone()
