"""Where workers are to run on a host with several nodes of memory: near the GPU of this process, if that is asked for."""

import os
from typing import Any

import torch

from stoker.host import numa


def cores_near_device() -> frozenset[int] | None:
    """The cores that workers are bound to. None: to no others than this process.

    Only with STOKER_NUMA=1: a job with one GPU would have half of the cores of a host with two nodes.
    """
    if os.environ.get("STOKER_NUMA", "0") in ("", "0") or not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return None
    found: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    address = f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
    return numa.near_device(address, os.sched_getaffinity(0))
