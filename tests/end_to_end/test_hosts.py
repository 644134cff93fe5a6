"""An unmodified script on two hosts under torchrun: its hosts give each other what their caches hold."""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.hosts import Host, Hosts, missing
from benchmarks.partitioned import folder_of_files
from tests.tries import in_some_try

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"hosts inside this machine: {missing()}")

SCRIPT = Path(__file__).parents[1] / "scripts" / "folder_ranks.py"
EXAMPLES = Path(__file__).parents[2] / "examples" / "unmodified"
APART = SCRIPT.with_name("folder_apart.py")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "STOKER_SECRET_FILE"} | {"OMP_NUM_THREADS": "1"}


def launch(hosts: Hosts, *words: str | Path, environment: dict[str, str], script: Callable[[Host], list[Any]]) -> list[str]:
    """Run a script on all hosts. Returns what each printed."""
    processes = []
    for number, host in enumerate(hosts):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(hosts)), *words]
        command = [*torchrun, "--node-rank", str(number), *script(host)]
        processes.append(host.start(command, env=environment, stderr=subprocess.STDOUT))
    printed = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(hosts), "\n".join(printed)
    return printed


def train(hosts: Hosts, folder: str, epochs: int, *stoker: str, environment: dict[str, str]) -> tuple[str, list[int], str]:
    """Train on all hosts. Returns what rank 0 printed, what each disk has delivered, and all that was printed."""
    before = [host.bytes_read() for host in hosts]
    for host in hosts:
        host.run([sys.executable, "-c", _DROP, host.data])
    master = ["--master-addr", hosts[0].name, "--master-port", "29511"]
    printed = launch(
        hosts,
        *master,
        environment=environment,
        script=lambda host: [*stoker, SCRIPT, host.data / folder, "--epochs", epochs],
    )
    read = [host.bytes_read() - start for host, start in zip(hosts, before, strict=True)]
    return "\n".join(line for line in printed[0].splitlines() if line.startswith("loss")), read, "".join(printed)


_DROP = """
import os, sys
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
"""


@pytest.mark.parametrize("is_auto", [False, True], ids=["named", "auto"])
def test_the_losses_are_the_same_and_storage_is_read_once(tmp_path: Path, is_auto: bool) -> None:
    environment = dict(ENVIRONMENT)
    if not is_auto:
        secret = tmp_path / "secret"
        secret.write_text(secrets.token_hex(32))
        secret.chmod(0o600)
        environment["STOKER_SECRET_FILE"] = str(secret)
    with folder_of_files(160, 64_000, are_pictures=False) as data, Hosts(data.parent, 2, memory="512m") as hosts:
        total = sum(path.stat().st_size for path in data.rglob("*.bin"))
        epochs = 3
        plain, _, _ = train(hosts, data.name, epochs, environment=environment)
        peers = "auto" if is_auto else ",".join(f"{host.name}:7003" for host in hosts)
        words = ["-m", "stoker", "run", "--cache", f"{int(total * 0.6)}B", "--peers", peers]

        def shares() -> None:
            shared, read, said = train(hosts, data.name, epochs, *words, environment=environment)
            assert plain.count("loss") == epochs * 10
            assert shared == plain
            assert said.count("% from other hosts") == 2, said
            assert "Warning" not in said
            assert sum(read) < 1.1 * total  # each for itself: 1.9

        in_some_try(shares)  # on a busy machine hosts may meet later than they wait for each other


def test_the_example_of_the_guide(tmp_path: Path) -> None:
    """As docs/peers.md has it, on two hosts that find each other: in four epochs their disks deliver the data once."""
    subprocess.run([sys.executable, EXAMPLES / "make_data.py", tmp_path, "--sounds", "0"], check=True)
    total = sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*.jpg"))
    stoker = [sys.executable, "-m", "stoker", "run", "--cache", "64MB", "--peers", "auto"]
    environment = ENVIRONMENT | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # torchrun is there
    torchrun = ["torchrun", "--nnodes", "2", "--master-addr", "host0", "--master-port", "29515", "--nproc-per-node", "1"]

    def shares() -> None:
        before = [host.bytes_read() for host in hosts]
        for host in hosts:
            host.run([sys.executable, "-c", _DROP, host.data])
        processes = []
        for number, host in enumerate(hosts):
            words = [*stoker, *torchrun, "--node-rank", str(number), EXAMPLES / "hosts_ddp.py", host.data / "pictures"]
            processes.append(host.start(words, env=environment, stderr=subprocess.STDOUT))
        printed = [process.communicate(timeout=240)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0], "\n".join(printed)
        for rank, said in enumerate(printed):
            assert [f"rank {rank} epoch {epoch}" in said for epoch in range(4)] == [True] * 4, said
        read = sum(host.bytes_read() - start for host, start in zip(hosts, before, strict=True))
        assert read < 1.3 * total, "".join(printed)  # each for itself: 1.9

    with Hosts(tmp_path, 2, memory="512m") as hosts:
        in_some_try(shares)  # on a busy machine hosts may meet later than they wait for each other


@contextlib.contextmanager
def two_hosts() -> Iterator[Hosts]:
    with folder_of_files(64, 16_000, are_pictures=False) as data, Hosts(data.parent, 2, memory="512m") as made:
        yield made


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with two_hosts() as made:
        yield made


def from_other_hosts(printed: list[str]) -> dict[int, int]:
    """How many items each rank got from another host."""
    said = [json.loads(line.split(" ", 1)[1]) for line in "".join(printed).splitlines() if line.startswith("stats ")]
    return {one["rank"]: one["hits_peer"] for one in said}


def test_a_rank_without_a_loader_holds_up_nobody(hosts: Hosts) -> None:
    master = ["--nproc-per-node", "2", "--master-addr", hosts[0].name, "--master-port", "29512"]
    printed = launch(
        hosts, *master, environment=ENVIRONMENT, script=lambda host: [APART, host.data, "600000", "--idle", "0"]
    )
    assert sorted(from_other_hosts(printed)) == [1, 2, 3]
    assert min(from_other_hosts(printed).values()) > 0, printed


def test_hosts_find_each_other_again_after_a_restart(hosts: Hosts) -> None:
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts[0].name}:29513", "--max-restarts", "1"]
    printed = launch(
        hosts, *meeting, environment=ENVIRONMENT, script=lambda host: [APART, host.data, "600000", "--fails-once", "1"]
    )
    assert sorted(from_other_hosts(printed)) == [0, 1]
    assert min(from_other_hosts(printed).values()) > 0, printed


def test_hosts_without_torchrun_meet_by_the_scripts_process_group(hosts: Hosts) -> None:
    processes = []
    for rank, host in enumerate(hosts):
        run = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": hosts[0].name, "MASTER_PORT": "29514"}
        words = [sys.executable, APART, host.data, "600000", "--group-first"]
        processes.append(host.start(words, env=ENVIRONMENT | run, stderr=subprocess.STDOUT))
    printed = [process.communicate(timeout=240)[0] for process in processes]
    assert sorted(from_other_hosts(printed)) == [0, 1], printed
    assert min(from_other_hosts(printed).values()) > 0, printed


def test_workers_of_ray_train_meet_by_their_process_group(tmp_path: Path) -> None:
    environment = ENVIRONMENT | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1"}
    ray = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--num-cpus", "1"]
    ray += ["--object-store-memory", "100000000"]
    # Sockets are in that folder, so its path is short. All of Ray's processes end with the hosts.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as place, two_hosts() as hosts:
        head = ["--head", "--port", "6399", "--include-dashboard=false", "--temp-dir", place]
        hosts[0].run([*ray, *head, "--node-ip-address", hosts[0].address], env=environment, stderr=subprocess.DEVNULL)
        join = ["--address", f"{hosts[0].address}:6399", "--node-ip-address", hosts[1].address]
        hosts[1].run([*ray, *join], env=environment, stderr=subprocess.DEVNULL)
        words = [sys.executable, APART.with_name("ray_apart.py"), hosts[0].data, "600000", tmp_path]
        process = hosts[0].start(words, env=environment, stderr=subprocess.STDOUT)
        printed = process.communicate(timeout=240)[0]
        assert process.returncode == 0, printed
    said = from_other_hosts([(tmp_path / str(rank)).read_text() for rank in range(2)])
    assert min(said[0], said[1]) > 0, printed
