import os
from pathlib import Path

import pytest

from stoker.errors import ConfigError
from stoker.wire.secret import shared_secret


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef0123456789abcdef\n")
    path.chmod(0o600)
    return path


def test_the_secret_comes_from_the_file(file: Path) -> None:
    assert shared_secret({"STOKER_SECRET_FILE": str(file)}) == b"0123456789abcdef0123456789abcdef"


def test_without_a_file_the_error_says_how_to_make_one() -> None:
    with pytest.raises(ConfigError, match="openssl rand"):
        shared_secret({})


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_can_open_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        shared_secret({"STOKER_SECRET_FILE": str(file)})


@pytest.mark.parametrize("content", [b"", b"short", b"  \n" * 100, b"x" * 5000])
def test_a_secret_of_a_wrong_length_is_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="must have 16 to"):
        shared_secret({"STOKER_SECRET_FILE": str(file)})


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match="STOKER_SECRET_FILE"):
            shared_secret({"STOKER_SECRET_FILE": str(path)})


@pytest.mark.timeout(60)
def test_a_pipe_is_refused_and_nobody_waits_for_who_writes_to_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="is not a file"):
        shared_secret({"STOKER_SECRET_FILE": str(tmp_path / "pipe")})
