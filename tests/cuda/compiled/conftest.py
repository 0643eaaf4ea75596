"""Code is compiled without a GPU."""

from types import SimpleNamespace

import pytest
from numba.cuda import dispatcher

from workbench.cuda.doctor import facts


@pytest.fixture(scope="module", autouse=True)
def no_gpu_needed():
    """Skip without the toolkit; answer for the GPU where numba asks for its compute capability."""
    if missing := facts().missing_toolkit:
        pytest.skip(f"needs the CUDA toolkit; not found: {', '.join(missing)}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=(8, 0)))
        yield
