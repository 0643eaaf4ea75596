import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

SCRIPT = """
    import json, sys
    import numpy as np
    from numba import cuda, float32, int32

    FULL = 0xFFFFFFFF

    @cuda.jit(device=True)
    def reverse(tile, n):
        t = cuda.threadIdx.x
        mine = tile[n - 1 - t]
        cuda.syncthreads()
        tile[t] = mine
        cuda.syncthreads()

    @cuda.jit
    def kernel(x, out, count):
        s = cuda.shared.array(16, int32)
        mine = cuda.local.array(2, int32)
        t = cuda.threadIdx.x
        x0, y0 = cuda.grid(2)
        s[t] = x[cuda.blockIdx.x, t]
        cuda.syncthreads()
        reverse(s, 16)
        mine[0], mine[1] = s[t], s[(t + 1) % 16]
        total = 0
        for i in range(2):
            if mine[i] % 3 == 0:
                continue
            total += mine[i] // 2 if mine[i] > 0 else -(mine[i] % 5)
        votes = cuda.syncthreads_count(total > 3) + 100 * cuda.syncthreads_or(total == 7)
        cuda.atomic.add(count, t % 2, total)
        cuda.atomic.max(count, 2, total)
        out[x0] = total + 1000 * votes + y0 + cuda.popc(int32(t)) * cuda.gridDim.x - cuda.blockDim.x

    x = np.random.default_rng(0).integers(-50, 50, (3, 16)).astype(np.int32)
    out, count = np.zeros(48, np.int64), np.zeros(3, np.int32)
    if sys.argv[1] == "emulator":
        from workbench.cuda import emulator

        emulator.compile(emulator.source_of(kernel))(3, 16, (x, out, count))
    else:
        kernel[3, 16](x, out, count)
    print(json.dumps([out.tolist(), count.tolist()]))
"""


def test_numbas_simulator_agrees_on_integers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    results = []
    for where, variable in [("emulator", {}), ("simulator", {"NUMBA_ENABLE_CUDASIM": "1"})]:
        environment = os.environ | variable | {"PYTHONPATH": str(Path.cwd())}
        command = [sys.executable, str(script), where]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        results.append(json.loads(run.stdout))
    assert results[0] == results[1]
    assert len(set(results[0][0])) > 10
