"""Limits as the kernel sets them."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tries import until


@pytest.fixture
def memory_limit() -> Iterator[Path]:
    """A memory cgroup of 700 MB."""
    legacy, unified = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    group = (legacy if legacy.is_dir() else unified) / f"stoker-test-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a memory cgroup: {error}")
    try:
        name = "memory.limit_in_bytes" if legacy.is_dir() else "memory.max"
        (group / name).write_text(str(700 << 20))
        yield group
    finally:
        until(lambda: not (group / "cgroup.procs").read_text())  # workers may end later than their parent
        group.rmdir()
