"""A real Slurm over two hosts inside this machine: tasks of a step find each other."""

import contextlib
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.hosts import Hosts, missing
from benchmarks.slurm import write_configuration
from tests.end_to_end.test_hosts import APART, ENVIRONMENT, from_other_hosts, two_hosts
from tests.tries import until

SLURM = [program for program in ("slurmctld", "slurmd", "srun") if shutil.which(program) is None]
pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=f"hosts inside this machine: {missing()}"),
    pytest.mark.skipif(bool(SLURM), reason=f"not installed: {', '.join(SLURM)}"),
]


@contextlib.contextmanager
def cluster() -> Iterator[tuple[Hosts, dict[str, str]]]:
    """Two hosts that are nodes of Slurm, and the environment of its commands. Its daemons end with the hosts."""
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as name, two_hosts() as hosts:
        place = Path(name)
        nodes = "\n".join(f"NodeName={host.name} NodeAddr={host.address} CPUs=2" for host in hosts)
        master = f"{hosts[0].name}({hosts[0].address})"
        plain = "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n"
        environment = ENVIRONMENT | write_configuration(place, master, plain + nodes)
        hosts[0].run(["slurmctld"], env=environment)
        for host in hosts:
            (place / host.name).mkdir()
            host.run(["mount", "-t", "tmpfs", "tmpfs", "/sys/fs/cgroup"])  # slurmd looks whether there is something
            host.run(["slurmd", "-N", host.name], env=environment)
        until(lambda: hosts[0].run(["sinfo", "-h", "-t", "idle", "-o", "%D"], env=environment).strip() == str(len(hosts)))
        yield hosts, environment


def test_tasks_find_each_other_by_their_process_group_or_by_name(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o600)
    with cluster() as (hosts, environment):
        for words, more in (["--group-first"], {}), ([], {"STOKER_SECRET_FILE": str(secret)}):
            script = " ".join(map(str, [sys.executable, APART, hosts[0].data, "600000", *words]))
            ranks = f"export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS MASTER_ADDR={hosts[0].name} MASTER_PORT=29515"
            step = ["srun", "-N2", "-n2", "sh", "-c", f"{ranks}; exec {script}"]
            process = hosts[0].start(step, env=environment | more, stderr=subprocess.STDOUT)
            printed = process.communicate(timeout=240)[0]
            found = from_other_hosts([printed])
            assert sorted(found) == [0, 1], printed
            assert min(found.values()) > 0, printed
