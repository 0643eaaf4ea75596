"""The driver's stand-in in the driver's place."""

from types import SimpleNamespace

import pytest
from numba.cuda import dispatcher

from workbench.cuda import launch, prepared


@pytest.fixture
def driver(monkeypatch):
    """The driver's stand-in; nothing is compiled."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import cuda.core
    from cuda.bindings import driver as bindings

    from tests.cuda.prepared.driver import Driver, code_of

    found = Driver()
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=(9, 0)))
    monkeypatch.setattr(bindings, "cuLaunchKernel", found.launch)
    monkeypatch.setattr(bindings, "cuKernelSetAttribute", lambda *_: (0,))
    monkeypatch.setattr(launch, "cubin", lambda *of: SimpleNamespace(load=lambda: found.load(code_of(*of))))
    monkeypatch.setattr(cuda.core, "Device", found.context)
    monkeypatch.setattr(torch.cuda, "device", found.device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: (9, gpu))
    properties = SimpleNamespace(multi_processor_count=4, shared_memory_per_multiprocessor=228 * 1024)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: properties)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda gpu: found.stream_of(), raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: found.gpu, raising=False)
    prepared._loaded.cache_clear()
    yield found
    prepared._loaded.cache_clear()
