"""Which cores are near a device, by what the kernel says of a host."""

from pathlib import Path

import pytest

from stoker.host.numa import cores_in, near_device

GPU = "0000:3b:00.0"


def host(folder: Path, nodes: list[str], gpu_node: int, online: str = "0-7") -> Path:
    """A tree as in /sys."""
    for number, cores in enumerate(nodes):
        node = folder / f"devices/system/node/node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(cores + "\n")
    (folder / "devices/system/cpu").mkdir(parents=True)
    (folder / "devices/system/cpu/online").write_text(online + "\n")
    device = folder / "bus/pci/devices" / GPU
    device.mkdir(parents=True)
    (device / "numa_node").write_text(f"{gpu_node}\n")
    return folder


ALL = frozenset(range(8))
TWO = ["0-1,4-5", "2-3,6-7"]


@pytest.mark.parametrize(("node", "near"), [(0, {0, 1, 4, 5}), (1, {2, 3, 6, 7})])
def test_a_device_has_the_cores_of_its_node(node: int, near: set[int], tmp_path: Path) -> None:
    assert near_device(GPU.upper(), ALL, host(tmp_path, TWO, node)) == near


NOTHING = {
    "one node": (["0-7"], 0, ALL),
    "a second node that has memory only": (["0-7", ""], 0, ALL),
    "the kernel does not know": (TWO, -1, ALL),
    "the user has bound this process": (TWO, 0, frozenset({2, 3})),
    "the user has bound this process to cores of both": (TWO, 0, frozenset({0, 1, 2, 3})),
}


@pytest.mark.parametrize("name", NOTHING)
def test_nothing_is_bound(name: str, tmp_path: Path) -> None:
    nodes, node, allowed = NOTHING[name]
    assert near_device(GPU, allowed, host(tmp_path, nodes, node)) is None


def test_a_host_that_says_nothing(tmp_path: Path) -> None:
    assert near_device(GPU, ALL, tmp_path) is None
    assert near_device("0000:00:00.0", ALL, host(tmp_path, TWO, 0)) is None


def test_lists_of_cores() -> None:
    assert cores_in("0-2,8,10-11\n") == {0, 1, 2, 8, 10, 11}
    assert cores_in("\n") == frozenset()
