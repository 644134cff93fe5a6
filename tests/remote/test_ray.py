"""Workers that Ray places: a real cluster of two hosts inside this machine, and a third one that trains."""

import json
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from benchmarks.hosts import Host, Hosts, missing
from tests.remote.training import ENVIRONMENT, LONG_S, SCRIPT, Training, kill, processes, until, workers
from tests.scripts import offloaded

import stoker
from stoker.errors import ConfigError
from stoker.remote.cluster import ClusterAddress, ClusterMeeting, NoClusterError, meet, parse_cluster
from stoker.remote.placing import Placing, PlacingOrder, how_many
from stoker.remote.tending import Tending
from stoker.remote.worker import WorkerRefusedError, main

HOSTS = pytest.mark.skipif(bool(missing()), reason=f"hosts inside this machine: {missing()}")


@pytest.fixture(scope="module", autouse=True)
def _no_process_left() -> None:
    """Not after each test: Ray keeps processes for the next one. All of a cluster's end with its hosts."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """A cluster's head with one CPU, its node with two, and a host that is no node of it."""
    ray = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start"]
    ray += ["--object-store-memory", "80000000", "--disable-usage-stats"]
    # Sockets are in that folder, so its path is short. All of Ray's processes end with the hosts.
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as place,
        tempfile.TemporaryDirectory() as data,
        Hosts(Path(data), 3, memory="512m") as made,
    ):
        head, node, _ = made
        words = ["--head", "--port", "6399", "--include-dashboard=false", "--temp-dir", place, "--num-cpus", "1"]
        head.run([*ray, *words, "--node-ip-address", head.address], env=ENVIRONMENT, stderr=subprocess.DEVNULL)
        words = [
            "--address",
            f"{head.address}:6399",
            "--num-cpus",
            "2",
            "--labels",
            "pool=cpu",
            "--resources",
            '{"prep": 1}',
        ]
        node.run([*ray, *words, "--node-ip-address", node.address], env=ENVIRONMENT, stderr=subprocess.DEVNULL)
        yield made


@HOSTS
def test_a_worker_is_placed_on_the_other_node_and_helps(hosts: Hosts) -> None:
    head, node, _ = hosts
    training = Training(head, SCRIPT, "auto?workers=1")
    training.until_helped()
    assert len(workers([node])) == 1 and not workers([head])
    assert training.end() == 0
    until(lambda: not workers(hosts))


@HOSTS
@pytest.mark.soak
def test_workers_are_placed_and_come_back_when_they_are_killed(hosts: Hosts) -> None:
    head, node, apart = hosts
    address = f"ray://{head.name}:10001"
    training = Training(apart, "-m", "stoker", "run", "--seed", "3", "--offload", address, SCRIPT)
    training.until(lambda: len(workers(hosts)) == 3)  # as many as there are CPUs
    training.until_helped()
    before = workers(hosts)
    kill(before)
    training.until(lambda: len(set(workers(hosts)) - set(before)) == 3)
    training.until_helped()
    before = workers(hosts)
    kill(processes(node, "ray::Tending"))
    training.until(lambda: len(workers(hosts)) == 3 and set(workers(hosts)) != set(before))
    training.until_helped()
    kill(workers(hosts), signal.SIGSTOP)
    for _ in range(3):
        training.epoch()
    kill(workers(hosts), signal.SIGCONT)
    assert training.end() == 0
    until(lambda: not workers(hosts))


@HOSTS
@pytest.mark.soak
def test_as_many_are_placed_as_are_wanted_where_they_may_be(hosts: Hosts) -> None:
    head, _, apart = hosts
    script = SCRIPT.with_name("placed.py")

    def placed(host: Host, cluster: str, *wanted: tuple[int | None, int]) -> None:
        """For each number that is wanted, the one that is there then."""
        words = "".join(json.dumps(pair) + "\n" for pair in wanted)
        process = host.start([sys.executable, script, cluster], env=ENVIRONMENT, stdin=subprocess.PIPE)
        said, _ = process.communicate(words, timeout=LONG_S)
        assert [int(line) for line in said.split()] == [there for _, there in wanted]
        until(lambda: not workers(hosts))

    placed(head, "auto", (None, 2), (1, 1), (2, 2), (0, 0))  # the head's own CPU is not another host's
    placed(head, "auto?resources=prep:1", (None, 1), (2, 1))
    placed(apart, f"ray://{head.name}:10001?labels=pool:cpu", (None, 2), (3, 2))


@HOSTS
@pytest.mark.soak
def test_in_a_worker_of_ray_train(hosts: Hosts, tmp_path: Path) -> None:
    """Its placement group has all CPUs of the head. Workers are outside of it, on the other node."""
    head = hosts[0]
    training = Training(head, SCRIPT.with_name("ray_offloaded.py"), tmp_path, RAY_TRAIN_V2_ENABLED="1")
    assert training.end(awaited=True) == 0, training.said
    assert training.epochs[-1]["remote"] > 0
    until(lambda: not workers(hosts))


@HOSTS
def test_versions_that_differ(hosts: Hosts, tmp_path: Path) -> None:
    about = tmp_path / "torch-9.9.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9\n")
    training = Training(hosts[0], SCRIPT, "auto?workers=1", PYTHONPATH=str(tmp_path))
    training.until(lambda: training.has_said("9.9 on the training host"))
    assert training.end() == 0
    (said,) = [line for line in training.said if "no worker can be on host1" in line]
    assert "torch" in said and said.startswith("stoker: offload=:"), said
    assert training.epochs[-1]["remote"] == 0


@HOSTS
def test_another_ray(hosts: Hosts, tmp_path: Path) -> None:
    other = "import sys\nif 'stoker.remote.placing' in sys.orig_argv:\n    import ray\n    ray.__version__ = '2.0.0'\n"
    (tmp_path / "sitecustomize.py").write_text(other)
    words = [sys.executable, SCRIPT.with_name("placed.py"), "auto", "--answer"]
    said = hosts[0].run(words, env=ENVIRONMENT | {"PYTHONPATH": str(tmp_path)}, stderr=subprocess.DEVNULL)
    assert "2.0.0" in said and metadata.version("ray") in said, said


@HOSTS
def test_a_cluster_that_cannot_be_reached(hosts: Hosts) -> None:
    nowhere = f"ray://{hosts[0].name}:7777"
    training = Training(hosts[2], SCRIPT, nowhere)
    training.until(lambda: training.has_said("Connection refused"))
    assert training.end() == 0
    assert len(training.said) == 1, training.said
    training = Training(hosts[2], SCRIPT, f"{nowhere}?required")
    assert training.end(awaited=True) == 1
    assert training.said[-1].startswith("stoker.errors.ConfigError: offload="), training.said
    assert not training.epochs


@HOSTS
@pytest.mark.soak
def test_a_head_that_goes_away(hosts: Hosts, tmp_path: Path) -> None:
    """The last test of this cluster. One training is in Ray's client, the other on the head's own host."""
    head, _, apart = hosts
    training = Training(head, SCRIPT, "auto?workers=1")
    plan = tmp_path / "plan.toml"
    offload = f'[offload]\naddress = "ray://{head.name}:10001"\nworkers = 1\n'
    plan.write_text(f"version = 1\n[loader]\nseed = 3\n{offload}")
    other = Training(apart, "-m", "stoker", "run", "--plan", plan, SCRIPT)
    training.until_helped()
    other.until_helped()
    assert len(workers(hosts)) == 2
    kill(processes(head, "stoker.remote.placing"))
    training.until(lambda: training.has_said("started again"))
    training.until(lambda: len(processes(head, "stoker.remote.placing")) == 1)
    training.until_helped()
    kill([pid for what in ("gcs/gcs_server", "raylet/raylet", "ray.util.client") for pid in processes(head, what)])
    training.until(lambda: training.has_said("cannot be used"))
    other.until(lambda: other.has_said("cannot be used"))
    for one in (training, other):
        one.epoch()
        assert one.end() == 0


def test_a_node_without_stoker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['stoker'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    there = Tending("tcp://127.0.0.1:7", "secret")
    assert "there" in there.word()
    said = there.word()
    assert said["trouble"].startswith(f"no worker can be on {socket.gethostname()}: "), said
    assert "stoker" in said["trouble"].partition(": ")[2], said


def test_a_run_that_cannot_be_reached_is_given_up() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(WorkerRefusedError, match="cannot be reached from this host"):
            main(nobody.getsockname(), b"secret of 16 bytes", patience_s=0.2)


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)

    def loader(offload: str) -> Any:
        return stoker.DataLoader(offloaded.Noisy(0.0), 8, num_workers=1, seed=3, offload=offload)

    with pytest.warns(UserWarning, match=r"everything is prepared on this host, because Ray is not installed: pip"):
        assert len(list(loader("ray://head:10001"))) == offloaded.SAMPLES // 8
    with pytest.raises(ConfigError, match="Ray is not installed"):
        list(loader("ray://head:10001?required"))


def test_what_a_user_says_of_a_cluster() -> None:
    assert parse_cluster("ray://head:10001") == ClusterAddress("ray://head:10001")
    said = "auto?workers=8&resources=prep:1,disk:0.5&labels=pool:cpu&required"
    assert parse_cluster(said) == ClusterAddress("auto", 8, {"prep": 1.0, "disk": 0.5}, {"pool": "cpu"}, is_required=True)
    numbers = [f"auto?resources=prep:{count}" for count in ("0", "-1", "nan", "inf")]
    for wrong in (
        "ray://head",
        "ray://:1",
        "auto?workers=0",
        "auto?workers=x",
        "auto?cpus=1",
        "auto?resources=prep",
        *numbers,
    ):
        with pytest.raises(ConfigError, match="ray://HEAD:PORT"):
            parse_cluster(wrong)


def test_how_a_host_meets_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(NoClusterError, match="RAY_ADDRESS is not set"):
        meet(ClusterAddress("auto"), {}, tmp_path)
    with pytest.raises(NoClusterError, match=r"no node of the Ray cluster at 10\.0\.0\.9:6379"):
        meet(ClusterAddress("auto"), {"RAY_ADDRESS": "10.0.0.9:6379"}, tmp_path)
    with pytest.raises(NoClusterError, match="tunnel"):
        meet(ClusterAddress("ray://localhost:10001"), {}, tmp_path)
    process = tmp_path / "17"
    process.mkdir()
    words = ["/lib/ray/raylet", "--node_ip_address=10.0.0.2", "--gcs-address=10.0.0.1:6379", ""]
    (process / "cmdline").write_text("\0".join(words))
    met = ClusterMeeting("10.0.0.1:6379", "10.0.0.2")
    assert meet(ClusterAddress("auto"), {}, tmp_path) == met
    assert meet(ClusterAddress("ray://10.0.0.1:10001"), {}, tmp_path) == met


@pytest.mark.parametrize("host", [None, "host1"])
def test_free_cpus_are_not_blamed_where_a_host_was_named(host: str | None) -> None:
    ray, said = mock.Mock(), []
    ray.nodes.return_value, ray.wait.return_value = [], ([], [])
    placing = Placing(ray, PlacingOrder("ray://head:1", "", "", 1, {}, {}), lambda **words: said.append(words))
    if host is not None:
        placing._refused.add(host)
    placing._began -= 60
    placing.round(None)
    assert len(said) == (1 if host is None else 0)


def test_how_many_workers_are_placed() -> None:
    assert how_many(None, None, placed=0, pending=0, free=5) == 5
    assert how_many(None, None, placed=5, pending=0, free=2) == 7  # a node has joined
    assert how_many(None, None, placed=5, pending=1, free=2) == 5
    assert how_many(None, 8, placed=0, pending=0, free=5) == 8  # a cluster that scales itself is asked for more
    assert how_many(3, 8, placed=8, pending=0, free=0) == 3
    assert how_many(20, 8, placed=8, pending=0, free=0) == 8
    assert how_many(0, None, placed=8, pending=0, free=0) == 0
