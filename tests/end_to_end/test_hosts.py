"""An unmodified script on two hosts under torchrun: its hosts give each other what their caches hold."""

import os
import secrets
import sys
from pathlib import Path

import pytest
from benchmarks.hosts import Hosts, missing
from benchmarks.partitioned import folder_of_files

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"hosts inside this machine: {missing()}")

SCRIPT = Path(__file__).parents[1] / "scripts" / "folder_ddp.py"


def train(hosts: Hosts, folder: str, *stoker: str, environment: dict[str, str]) -> tuple[str, list[int]]:
    """Train on all hosts. Returns what rank 0 printed, and what each disk has delivered."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(hosts)), "--master-addr", hosts[0].name]
    before = [host.bytes_read() for host in hosts]
    processes = []
    for number, host in enumerate(hosts):
        host.run([sys.executable, "-c", _DROP, host.data])
        words = [*launch, "--node-rank", str(number), "--master-port", "29511", *stoker, SCRIPT, host.data / folder]
        processes.append(host.start(words, env=environment))
    printed = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(hosts)
    read = [host.bytes_read() - start for host, start in zip(hosts, before, strict=True)]
    return "\n".join(line for line in printed[0].splitlines() if line.startswith("loss")), read


_DROP = """
import os, sys
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
"""


def test_the_losses_are_the_same_and_storage_is_read_once(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o600)
    environment = os.environ | {"STOKER_SECRET_FILE": str(secret), "OMP_NUM_THREADS": "1"}
    with folder_of_files(160, 64_000, are_pictures=False) as data, Hosts(data.parent, 2, memory="512m") as hosts:
        total = sum(path.stat().st_size for path in data.rglob("*.bin"))
        plain, _ = train(hosts, data.name, environment=environment)
        peers = ",".join(f"{host.name}:7003" for host in hosts)
        words = ["-m", "stoker", "run", "--cache", f"{int(total * 0.6)}B", "--peers", peers]
        shared, read = train(hosts, data.name, *words, environment=environment)
        assert plain.count("loss") == 3 * 10
        assert shared == plain
        assert sum(read) < 1.1 * total  # and not three times
