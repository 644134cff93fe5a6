"""Files that are slow to read."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.latent_folder import Latent, latent_folder

FILES, SIZE = 96, 20_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(FILES):
        path = folder / f"{1 + number % 2}-{number:04}"
        path.write_bytes(rng.bytes(SIZE))
        os.utime(path, (1e9, 1e9))
    return folder


@pytest.fixture
def latent(data: Path) -> Iterator[Latent]:
    with latent_folder(data, 0.01) as made:
        if made is None:
            pytest.skip("/dev/fuse cannot be mounted here")
        yield made
