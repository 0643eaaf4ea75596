"""Cross-entropy with label smoothing 0.1: loss per row and dlogits of the mean loss."""
import ml_dtypes  # noqa: F401
import numpy as np

f32 = np.float32
LOG2E = f32(1.4426950408889634)


def naive(logits, labels):
    n, c = logits.shape
    shifted = logits - logits.max(-1, keepdims=True)
    exps = np.exp(shifted)
    total = exps.sum(-1, keepdims=True)
    logp = shifted - np.log(total)
    target = np.full((n, c), 0.1 / c)
    target[np.arange(n), labels] += 0.9
    loss = -(target * logp).sum(-1)
    dlogits = (exps / total - target) / n
    return loss, dlogits


def inputs(seed, dtype, rows=64, classes=176):
    rng = np.random.default_rng(seed)
    return {"logits": (3 * rng.standard_normal((rows, classes))).astype(dtype), "labels": rng.integers(0, classes, rows)}


def smooth(x, labels):
    n, c = x.shape
    target = np.full((n, c), f32(0.1 / c), f32)
    target[np.arange(n), labels] = f32(0.9 + 0.1 / c)
    return target


def right_online(logits, labels):
    """One pass over tiles of 64 classes with a running maximum; loss = lse - 0.9 x[label] - 0.1 mean(x)."""
    x = logits.astype(f32)
    n, c = x.shape
    m, s, sum_x = np.full(n, -np.inf, f32), np.zeros(n, f32), np.zeros(n, f32)
    for j in range(0, c, 64):
        tile = x[:, j:j + 64]
        new = np.maximum(m, tile.max(-1))
        s = s * np.exp(m - new) + np.exp(tile - new[:, None]).sum(-1)
        m, sum_x = new, sum_x + tile.sum(-1)
    lse = m + np.log(s)
    loss = lse - f32(0.9) * x[np.arange(n), labels] - f32(0.1 / c) * sum_x
    d = np.exp(x - m[:, None]) * (f32(1) / s)[:, None]
    return loss, ((d - smooth(x, labels)) * f32(1 / n)).astype(logits.dtype)


def right_lse(logits, labels):
    """Classes from the last to the first in four accumulators; probabilities as exp(x - lse)."""
    x = logits.astype(f32)
    n, c = x.shape
    m = x.max(-1, keepdims=True)
    acc = np.zeros((n, 4), f32)
    for j in range(c - 1, -1, -1):
        acc[:, j % 4] += np.exp(x[:, j] - m[:, 0])
    lse = m + np.log((acc[:, 0] + acc[:, 1]) + (acc[:, 2] + acc[:, 3]))[:, None]
    gap = lse - x
    loss = f32(0.9) * gap[np.arange(n), labels] + f32(0.1) * gap.mean(-1)
    return loss, ((np.exp(-gap) - smooth(x, labels)) / f32(n)).astype(logits.dtype)


def right_exp2(logits, labels):
    """exp2 of logits scaled by log2(e), sums of halves, log2."""
    x = logits.astype(f32)
    n, c = x.shape
    y = x * LOG2E
    y = y - y.max(-1, keepdims=True)
    e = np.exp2(y)
    s = e[:, : c // 2].sum(-1) + e[:, c // 2:].sum(-1)
    logp = (y - np.log2(s)[:, None]) * f32(0.6931471805599453)
    loss = -(f32(0.9) * logp[np.arange(n), labels] + f32(0.1 / c) * logp.sum(-1))
    return loss, ((e / s[:, None] - smooth(x, labels)) * f32(1 / n)).astype(logits.dtype)


def staged(logits, labels, mistake=""):
    x = logits.astype(f32)
    n, c = x.shape
    shifted = x - x.max(-1, keepdims=True)
    exps = np.exp(shifted)
    total = np.zeros((n, 1), f32)
    for j in range(0, c, 32):
        total = total + exps[:, j:j + 32].sum(-1, keepdims=True)
        if mistake == "total":
            total = total.astype(np.float16).astype(f32)
    logp = shifted - np.log(total)
    target = np.full((n, c), f32(0.1 / (c - 1 if mistake == "smoothing" else c)), f32)
    seen = labels < (c // 64 * 64 if mistake == "label" else c)
    target[np.arange(n)[seen], labels[seen]] = f32(0.9 + 0.1 / c)
    loss = -(target * logp).sum(-1)
    dlogits = ((exps / total - target) / f32(n)).astype(logits.dtype)
    return {"shifted": shifted, "exps": exps, "total": total, "logp": logp, "target": target, "loss": loss,
            "dlogits": dlogits}


def wrong_total_fp16_staged(logits, labels):
    return staged(logits, labels, "total")


def wrong_total_fp16(logits, labels):
    """The running sum of exponentials is kept in float16 from tile to tile."""
    got = staged(logits, labels, "total")
    return got["loss"], got["dlogits"]


def wrong_smoothing_staged(logits, labels):
    return staged(logits, labels, "smoothing")


def wrong_smoothing(logits, labels):
    """0.1 / (c - 1) is given to the other classes, 0.9 + 0.1 / c still to the label."""
    got = staged(logits, labels, "smoothing")
    return got["loss"], got["dlogits"]


def wrong_label_tile(logits, labels):
    """Labels in the last, partial tile of 64 classes are never found."""
    got = staged(logits, labels, "label")
    return got["loss"], got["dlogits"]


if __name__ == "__main__":
    import sys
    sys.path.insert(0, ".")
    import check
    check.main(globals())
