"""The gated delta rule in plain code, a turn of its loop over tokens: S_t = a_t (I - b_t k_t k_t^T) S_(t-1) +
b_t k_t v_t^T, out_t = scale S_t^T q_t, with a gate a and a step b of each token (Yang, Kautz and Hatamizadeh 2024,
arXiv 2412.06464).
"""

import numpy as np

Array = np.ndarray


def token(
    q: Array, k: Array, v: Array, gate: Array, beta: Array, before: Array, *, scale: float = 1.0
) -> tuple[Array, Array]:
    """out of one token, in the dtype of q, and the state after it, float32, of the state `before`.

    q and k: [..., 1, dim], v: [..., 1, dim_v], gate and beta: [..., 1], before: [..., dim, dim_v], any axes in front.
    In float32, as kernels compute. NaN and infinities go where the products take them.
    """
    query, key, value = (x.astype(np.float32) for x in (q, k, v))
    recalled = key @ before
    scaled = gate[..., None] * recalled
    delta = value - scaled
    written = beta[..., None] * delta
    state = gate[..., None] * before + np.swapaxes(key, -1, -2) * written
    read = query @ state
    out = scale * read
    return out.astype(q.dtype), state
