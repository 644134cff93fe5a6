"""Which cores are near a device, on a host whose memory and cores lie in several nodes.

The kernel says which node a device is attached to, and which cores a node has. A worker that is bound to these cores also
gets its memory there, because the kernel gives a process memory of the node that it runs on.
"""

from collections.abc import Set
from pathlib import Path


def near_device(address: str, allowed: Set[int], system: Path = Path("/sys")) -> frozenset[int] | None:
    """The cores among those allowed that are near a PCI device ("0000:3b:00.0"). None: do not bind anything.

    That is so where there is one node, where the kernel does not know the device's, and where the user or a launcher has
    already bound this process to a part of the cores.
    """
    nodes = system / "devices/system/node"
    try:
        cores = {node.name: cores_in((node / "cpulist").read_text()) for node in nodes.glob("node[0-9]*")}
        number = int((system / "bus/pci/devices" / address.lower() / "numa_node").read_text())
        online = cores_in((system / "devices/system/cpu/online").read_text())
    except (OSError, ValueError):
        return None
    with_cores = [one for one in cores.values() if one]
    near = cores.get(f"node{number}", frozenset())  # -1: the kernel does not know
    if len(with_cores) < 2 or not online <= allowed:
        return None
    return near & allowed or None


def cores_in(text: str) -> frozenset[int]:
    """The numbers in a list of the kernel's, such as "0-3,8"."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if part:
            found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)
