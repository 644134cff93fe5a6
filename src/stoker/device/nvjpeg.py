"""The GPU's JPEG decoder, by NVIDIA's library: many files of one batch in one call, which holds no lock of Python's.

Its hardware engine decodes as libjpeg-turbo does, with `_INTERPOLATES` also where colours have fewer samples. The engine
does not honour its stream: it may write at once. So memory that it writes must be free by then.
"""

import ctypes
import ctypes.util
import functools
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

_HARDWARE, _INTERPOLATES, _BY_PIXEL = 3, 1 << 5, 5


class UnavailableError(Exception):
    """This host has no such decoder; the words say why."""


@functools.cache
def library() -> Any:
    """NVIDIA's library: the one that came with torchvision or CUDA's packages, or the system's."""
    for path in _places():
        try:
            found = ctypes.CDLL(str(path))
        except OSError:
            continue
        if hasattr(found, "nvjpegDecodeBatched"):
            return found
    raise UnavailableError("libnvjpeg is not installed; it comes with torchvision")


def _places() -> list[Path | str]:
    places: list[Path | str] = []
    for package, pattern in (("torchvision", "../torchvision.libs/libnvjpeg*.so*"), ("nvidia", "**/libnvjpeg.so*")):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            places += sorted(Path(folder).glob(pattern))
    named = ctypes.util.find_library("nvjpeg")
    places += sorted(Path("/usr/local/cuda/lib64").glob("libnvjpeg.so*"))
    return [*places, named] if named else places


class Nvjpeg:
    """The hardware engine of the current device. Used by one thread at a time."""

    def __init__(self) -> None:
        self._library = library()
        self._handle, self._state = ctypes.c_void_p(), ctypes.c_void_p()
        code = self._library.nvjpegCreateEx(_HARDWARE, None, None, _INTERPOLATES, ctypes.byref(self._handle))
        if code:
            raise UnavailableError(f"this GPU has no hardware that decodes JPEG (nvJPEG error {code})")
        code = self._library.nvjpegJpegStateCreate(self._handle, ctypes.byref(self._state))
        if code:
            raise UnavailableError(f"the GPU's JPEG decoder could not be prepared (nvJPEG error {code})")

    def decode(self, addresses: Any, lengths: Any, targets: Any, widths: Any, stream: int) -> bool:
        """Decode files at addresses to red, green, blue at targets on the device. False if the engine refuses one."""
        count = len(addresses)
        images = np.zeros((count, 8), np.uint64)  # four addresses and four lengths of a row
        images[:, 0], images[:, 4] = targets, 3 * widths
        files = np.ascontiguousarray(addresses, np.uint64)
        sizes = np.ascontiguousarray(lengths, np.uint64)
        begin, decode = self._library.nvjpegDecodeBatchedInitialize, self._library.nvjpegDecodeBatched
        self._check(begin(self._handle, self._state, count, 1, _BY_PIXEL), "nvjpegDecodeBatchedInitialize")
        code = decode(
            self._handle,
            self._state,
            ctypes.c_void_p(files.ctypes.data),
            ctypes.c_void_p(sizes.ctypes.data),
            ctypes.c_void_p(images.ctypes.data),
            ctypes.c_void_p(stream),
        )
        return bool(code == 0)

    @staticmethod
    def _check(code: int, what: str) -> None:
        if code:
            raise RuntimeError(f"{what} failed with error {code}")
