"""What the installed torch offers, for `stoker doctor`."""

import torch

from stoker.host.cores import usable_cores
from stoker.internals import expected
from stoker.measure.findings import Finding
from stoker.memory import Memory


def torch_findings() -> list[Finding]:
    """The accelerator that torch sees, and how it uses the host."""
    if torch.cuda.is_available():
        names = sorted({torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())})
        accelerator = f"{torch.cuda.device_count()} x {', '.join(names)}"
    else:
        accelerator = "none"
    return [Finding("accelerator", accelerator), _loading(), _threads(), *_pinning()]


def _loading() -> Finding:
    differs = expected.difference()
    if differs is None:
        return Finding("torch's loading", f"as expected of torch {expected.SUPPORTED}")
    return Finding("torch's loading", f"not as expected: {differs}", f"Loaders are torch's own. {expected.ADVICE}.")


def _threads() -> Finding:
    threads, usable = torch.get_num_threads(), usable_cores()
    advice = ""
    if threads > usable:
        advice = f"More than the cores that this process may use: set OMP_NUM_THREADS={max(1, int(usable))}."
    return Finding("torch's threads", str(threads), advice)


def _pinning() -> list[Finding]:
    if not torch.cuda.is_available():
        return []
    mapping = Memory(1 << 20).map(0, 1 << 20)
    code = int(torch.cuda.cudart().cudaHostRegister(mapping.address, mapping.length, 0))
    if code == 0:
        torch.cuda.cudart().cudaHostUnregister(mapping.address)
        return [Finding("page-locked slots", "work: `pin_memory=True` costs no copy")]
    return [
        Finding("page-locked slots", f"refused (CUDA error {code})", "pin_memory=True copies each batch, as torch's does.")
    ]
