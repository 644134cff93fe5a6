import subprocess
import sys

FAULTS = """
import ctypes, resource, sys
from stoker import memory
if sys.argv[1] == "keep":
    memory.keep_freed()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def write():
    places = [libc.malloc(100_000) for _ in range(30)]
    for place in places:
        ctypes.memset(place, 1, 100_000)
    for place in places:
        libc.free(place)

write()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    write()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(word: str) -> int:
    return int(subprocess.run([sys.executable, "-c", FAULTS, word], capture_output=True, text=True, check=True).stdout)


def test_memory_that_is_kept_needs_no_new_pages() -> None:
    """What LMDB does with each transaction: take some, write to it, free all."""
    assert faults("keep") < 500 < 5000 < faults("give back")
