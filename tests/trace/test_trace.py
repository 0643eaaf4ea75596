"""A trace in memory: slots that nobody wrote, and files that are written whole or not at all."""

import errno
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from workbench.files import write_atomically
from workbench.floats import to_float64
from workbench.refusal import Refusal
from workbench.trace.trace import blank, unwritten


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_blank_slot_is_unwritten_and_no_computed_value_is(dtype: type) -> None:
    slots = blank((3, 4), np.dtype(dtype))
    assert unwritten(slots).all() and np.isnan(to_float64(slots)).all()
    slots[1] = [0.0, np.nan, np.inf, 1.5]
    assert not unwritten(slots)[1].any() and unwritten(slots)[[0, 2]].all()
    with np.errstate(invalid="ignore"):
        assert not unwritten((blank((4,), np.dtype(dtype)).astype(np.float32) + np.float32(1)).astype(dtype)).any()


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(Refusal) as refused:
        write_atomically(path, b"new")
    assert str(refused.value) == f"{path} cannot be written: No space left on device"
    assert path.read_bytes() == b"old" and [entry.name for entry in tmp_path.iterdir()] == ["file"]
