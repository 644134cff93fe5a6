"""What is said to the user, and where."""

import warnings
from pathlib import Path

import pytest
import torch

import stoker
from stoker.errors import warn


def test_a_warning_shows_the_users_line() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warn("here")
    assert [one.filename for one in said] == [__file__]


def test_a_warning_from_within_a_loader_shows_the_users_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(65, 90)))
    secret.chmod(0o600)
    monkeypatch.setenv("STOKER_SECRET_FILE", str(secret))
    monkeypatch.setattr("stoker.feed.sharing._is_first", lambda words: True)
    loader = stoker.DataLoader(torch.arange(8).float(), 2, num_workers=1, offload="tcp://192.0.2.1:9", seed=1)
    with warnings.catch_warnings(record=True) as said, loader:
        warnings.simplefilter("always")
        list(loader)
    assert [one.filename for one in said if "offload" in str(one.message)] == [__file__]
