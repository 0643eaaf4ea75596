"""What is read of the user's own run, where no chosen input shows it by itself."""

import numpy as np
import pytest
from ml_dtypes import bfloat16

from tests.readings.own_run import FAULTS, kernel
from workbench import Case, run
from workbench.readings.reader import measured
from workbench.readings.scales import Rescaled, Size, candidates
from workbench.report.measured import document, lines

CASE = Case(heads=2, seqlen_q=32, seqlen_k=48, head_dim=32)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_read_off_the_own_run(fault: str) -> None:
    _, reading, stage, words = FAULTS[fault]
    found = measured(run(kernel(fault), CASE.but(softcap=2.0) if "cap" in fault else CASE))
    finding = found.findings[0]
    assert len(found.findings) == (2 if fault == "numbers of heads" else 1)
    assert (finding.reading, finding.stage) == (reading, stage) and words in finding.text
    assert found.proved and all(one.left <= 0.01 * one.error for one in found.proofs) and found.calls <= 200


def test_a_cast_that_a_contract_may_allow_is_said_apart() -> None:
    """An accumulator in bfloat16 is within the budgets of a contract that nobody declared: no finding."""

    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> np.ndarray:
        q, k, v = (x.astype(np.float32) for x in (q, k, v))
        s = q @ k.swapaxes(2, 3) * np.float32(scale)
        top, total, acc = s[..., :1], 0, np.zeros_like(q)
        for t in range(0, k.shape[2], 16):
            new = np.maximum(top, s[..., t : t + 16].max(-1, keepdims=True))
            p, alpha = np.exp(s[..., t : t + 16] - new), np.exp(top - new)
            acc = acc * alpha + p.astype(np.float16).astype(np.float32) @ v[:, :, t : t + 16]
            top, total, acc = new, total * alpha + p.sum(-1, keepdims=True), acc.astype(bfloat16).astype(np.float32)
        return (acc / total).astype(np.float16)

    found = measured(run(attention, Case(dtype="float16", heads=1, seqlen_q=64, seqlen_k=256)))
    assert not found.findings and not found.proved and found.stage is None
    (said,) = found.arithmetic
    assert said.text == "the accumulator is rounded to bfloat16 after each tile (tiles of 16 keys)"
    assert any("declare a contract" in line for line in lines(found))
    assert document(found)["arithmetic"] == [said.text] and document(found)["findings"] == []


def test_a_size_is_one_number_for_each_element_of_its_block() -> None:
    k = np.arange(1.0, 1 + 2 * 3 * 20 * 32).reshape(2, 3, 20, 32)
    memory = {"k": k, "v": k}
    for rows in (1, 8, 0):
        size = Size("k", rows)(memory, 16)
        n = rows or 20
        assert size.shape == (2, 3, 20, 2)
        assert np.array_equal(size[1, 2, :, 0], [k[1, 2, j // n * n : j // n * n + n].max() for j in range(20)])
    swapped = Size("k", 1, 16, group="in reverse")(memory, 16)
    assert np.array_equal(swapped[0, 0, 3], Size("k", 1, 16)(memory, 16)[0, 0, 3, ::-1])
    ordered = Size("k", 8, order=True)(memory, 16)[..., 0]
    blocks = np.array([[k[1, h, n * 8 : n * 8 + 8].max() for n in range(3)] for h in range(3)])
    # head h reads at block * heads + head what lies at head * blocks + block
    assert np.array_equal(ordered[1, 1, ::8], [blocks.reshape(-1)[n * 3 + 1] for n in range(3)])


def test_every_pair_of_sizes_says_what_it_is_and_is_another() -> None:
    rng = np.random.default_rng(0)
    memory = {name: rng.standard_normal((2, 2, 48, 32)) for name in "kv"}
    seen = set()
    for own, used in candidates("k", 2, 2):
        one = Rescaled("k", own, used)
        assert one.words not in seen and one(memory, 16).shape == (2, 2, 48, 2)
        seen.add(one.words)
    assert len(seen) > 200


def test_a_block_table_of_another_pitch_is_told_of_keys_and_values_alike() -> None:
    """Rows of the table are 3 entries apart, and read as 2 apart: 40 keys are 2 whole pages of 16, and a half."""

    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> np.ndarray:
        def paged(x: np.ndarray) -> np.ndarray:
            full = np.pad(x, ((0, 0), (0, 0), (0, 8), (0, 0))).reshape(2, 2, 3, 16, -1)
            pool = full.transpose(0, 2, 1, 3, 4).reshape(6, 2, 16, -1)
            at = np.arange(2)[:, None] * 2 + np.arange(3)
            return pool[at].transpose(0, 2, 1, 3, 4).reshape(2, 2, 48, -1)[:, :, :40]

        s = q @ paged(k).swapaxes(2, 3) * np.float32(scale)
        p = np.exp(s - s.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True) @ paged(v)

    found = measured(run(attention, Case(batch=2, heads=2, seqlen_q=32, seqlen_k=40, head_dim=32)))
    (finding,) = found.findings
    assert finding.text == "the row stride of the block table is 3 entries, but the kernel uses 2 (pages of 16 keys)"
    assert found.proved
