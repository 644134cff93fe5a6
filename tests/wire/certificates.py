"""Certificates as the guide has them made."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from stoker.wire.tls import Tls

GUIDE = Path(__file__).parents[2] / "docs" / "peers.md"


def certified(folder: Path) -> Tls:
    """The files of a host called node1, and of an authority of its own."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    commands = re.findall(r"^openssl (?:req|x509) .*", GUIDE.read_text(), re.MULTILINE)
    for command in commands:
        subprocess.run(command, shell=True, check=True, capture_output=True, cwd=folder)
    return Tls(folder / "node1.pem", folder / "node1.key", folder / "authority.pem")
