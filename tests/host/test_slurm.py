import pytest

from stoker.host import slurm


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("node1", ["node1"]),
        ("node[01-03,7]", ["node01", "node02", "node03", "node7"]),
        ("a,b[1-2],c-9.example.org", ["a", "b1", "b2", "c-9.example.org"]),
        ("rack[1-2]n[08-10]x", [f"rack{rack}n{number}x" for rack in (1, 2) for number in ("08", "09", "10")]),
        ("node[098-101]", ["node098", "node099", "node100", "node101"]),
    ],
)
def test_the_names_in_a_list_of_nodes(text: str, names: list[str]) -> None:
    assert slurm.nodes(text) == names


def test_tasks_of_a_job_agree_on_a_port_and_two_jobs_have_two(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = []
    for job in ("70001", "70001", "70002"):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        ports.append(slurm.port())
    assert ports[0] == ports[1] != ports[2]
    assert all(1024 < port < 32768 for port in ports)
