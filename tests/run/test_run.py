"""`stoker run`: an unmodified script does what it does under plain python, with our loader."""

import fcntl
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.tries import HANG_S, fastest

from stoker.meter import Meter
from stoker.run import replace

EXAMPLES = Path(__file__).parents[2] / "examples" / "unmodified"
RUN = [sys.executable, "-m", "stoker", "run"]
BIN = Path(sys.executable).parent


def call(words: list[Any], **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", **options.pop("env", {})}
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, env=environment, timeout=180, **options
    )


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    done = call([sys.executable, EXAMPLES / "make_data.py", folder])
    assert done.returncode == 0, done.stderr
    return folder


Plainly = Callable[[list[Any]], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def plainly(tmp_path_factory: pytest.TempPathFactory) -> Plainly:
    """What a command gives without us, which does not change from test to test."""
    known: dict[tuple[str, ...], subprocess.CompletedProcess[str]] = {}

    def run(words: list[Any]) -> subprocess.CompletedProcess[str]:
        key = tuple(map(str, words))
        if key not in known:
            known[key] = call(words, cwd=tmp_path_factory.mktemp("plain"))
        return known[key]

    return run


def arguments(name: str, data: Path) -> list[Any]:
    return {
        "images.py": [data / "pictures", "--epochs", 2],
        "audio.py": [data / "sounds"],
        "small_samples.py": ["--count", 5000],
    }.get(name, [])


def losses(text: str) -> list[str]:
    return [re.sub(r" seconds .*", "", line) for line in text.splitlines()]


@pytest.mark.parametrize("name", ["images.py", "audio.py", "small_samples.py", "lightning_module.py", "accelerate_loop.py"])
def test_examples_give_the_same_losses_bit_for_bit(name: str, data: Path, tmp_path: Path, plainly: Plainly) -> None:
    words = [EXAMPLES / name, *arguments(name, data)]
    plain = plainly([sys.executable, *words])
    ours = call([*RUN, *words], cwd=tmp_path)
    assert plain.returncode == ours.returncode == 0, plain.stderr + ours.stderr
    assert losses(plain.stdout)
    assert losses(ours.stdout) == losses(plain.stdout)
    assert re.search(r"^stoker: \d+ batches, [\d.]+ s waiting for data, 2 workers$", ours.stderr, re.MULTILINE), ours.stderr


@pytest.mark.parametrize("prep", ["host", "tail", "device"])
def test_a_gpu_that_is_not_there_is_missed_in_a_line(prep: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("from torch.utils.data import DataLoader\nlist(DataLoader(range(4), num_workers=1))\n")
    done = call([*RUN, "--prep", prep, script], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = f"stoker: prep='{prep}': everything was prepared on the host: torch sees no GPU here"
    assert (said in done.stderr.splitlines()) == (prep != "host")


def test_what_a_gpu_has_finished_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    meter = Meter()
    meter.batches, meter.samples, meter.on_device, meter.workers = 4, 8, 6, 1
    monkeypatch.setattr(replace, "_meters", [meter])
    replace._end(os.getpid(), [])
    assert capsys.readouterr().err == "stoker: 4 batches, 0.0 s waiting for data, 1 worker, 75 % finished on the GPU\n"


STREAM = """
class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))
"""


@pytest.mark.parametrize(
    ("dataset", "workers", "word"),
    [("range(4)", 0, "num_workers must be 1 or more"), ("Stream()", 1, "a stream is read where"), ("range(4)", 1, "")],
)
def test_other_hosts_are_not_waited_for_in_silence(dataset: str, workers: int, word: str, tmp_path: Path) -> None:
    script, secret = tmp_path / "train.py", tmp_path / "secret"
    imports = "from torch.utils.data import DataLoader, IterableDataset\n"
    script.write_text(f"{imports}{STREAM}\nlist(DataLoader({dataset}, num_workers={workers}))\n")
    secret.write_text("0" * 64)
    secret.chmod(0o600)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{one.getsockname()[1]}"
    words = [*RUN, "--seed", "1", "--offload", address, script]
    ours = call(words, cwd=tmp_path, env={"STOKER_SECRET_FILE": str(secret), "XDG_CACHE_HOME": str(tmp_path)})
    assert ours.returncode == 0, ours.stderr
    assert word in ours.stderr
    assert ("everything was prepared on this host" in ours.stderr) == bool(word), ours.stderr


@pytest.mark.parametrize("kind", ["run torchrun", "torchrun run", "-m torch.distributed.run"])
def test_both_ranks_under_torchrun_have_our_loader_both_ways_round(kind: str, tmp_path: Path, plainly: Plainly) -> None:
    launcher = ["--standalone", "--nproc-per-node", 2]
    script = EXAMPLES / "ddp.py"
    plain = plainly([BIN / "torchrun", *launcher, script])
    words = {
        "run torchrun": [*RUN, BIN / "torchrun", *launcher, script],
        "torchrun run": [BIN / "torchrun", *launcher, "-m", "stoker", "run", script],
        "-m torch.distributed.run": [*RUN, "-m", "torch.distributed.run", *launcher, script],
    }[kind]
    ours = call(words, cwd=tmp_path)
    assert plain.returncode == ours.returncode == 0, plain.stderr + ours.stderr
    assert sorted(ours.stdout.splitlines()) == sorted(plain.stdout.splitlines())
    for rank in (0, 1):
        assert f"stoker: rank {rank}: 12 batches" in ours.stderr


SCRIPTS = {
    "fails": "def deep():\n    raise ValueError('in the script')\nprint('before')\ndeep()\n",
    "fails in torch": "import torch\ntorch.ones(2) @ torch.ones(3)\n",
    "exits with a number": "import sys\nsys.exit(7)\n",
    "exits with words": "import sys\nsys.exit('no way')\n",
    "leaves at once": "import os\nprint('x', flush=True)\nos._exit(3)\n",
    "syntax error": "print('x'\n",
    "kills itself": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
    "is interrupted": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('never')\n",
    "knows who it is": "import sys, os\nprint(__name__, __file__, sys.argv, sys.path, os.getcwd(), sys.flags.optimize, __doc__)\n",
    "forks": "import os, torch\nif os.fork():\n    print(os.wait()[1])\nelse:\n    os._exit(4)\n",
    "spawns": (
        "import torch.multiprocessing as mp\nfrom torch.utils.data import DataLoader\n"
        "def child(i):\n    print(i, DataLoader.__name__, len(list(DataLoader(range(8), 2))), flush=True)\n"
        "if __name__ == '__main__':\n    mp.spawn(child, nprocs=1)\n"
    ),
    "starts another": "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(5)'], capture_output=True))\n",
    "prints much": "for i in range(10**5):\n    print(i)\n",
    "reads": "import sys\nprint(sys.stdin.read())\n",
    "needs no torch": "import sys\nprint('torch' in sys.modules, 'numpy' in sys.modules)\n",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_output_exit_code_and_traceback_are_pythons_own(name: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPTS[name])
    plain = call([sys.executable, "script.py", "a", "--b"], cwd=tmp_path, input="hello")
    ours = call([*RUN, "script.py", "a", "--b"], cwd=tmp_path, input="hello")
    assert ours.returncode == plain.returncode
    assert ours.stdout == plain.stdout
    assert _without_summary(ours.stderr) == plain.stderr


TRAINS = """
import sys
from sys import exit
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in DataLoader(torch.arange(8.0).reshape(8, 1), 2):
    model(x).sum().backward()
    optimizer.step()
"""
ENDS = {
    "as it should": ("", 0),
    "by an exception": ("raise ValueError('no way')", 1),
    "with a code": ("exit(4)", 4),
    "with words": ("sys.exit('no way')", 1),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_failing_script_has_the_last_word(how: str, tmp_path: Path) -> None:
    line, code = ENDS[how]
    (tmp_path / "script.py").write_text(TRAINS + line)
    done = call([*RUN, "--checkpoint", "checkpoints", "script.py"], cwd=tmp_path)
    assert done.returncode == code
    assert ("stoker: 4 batches" in done.stderr, "stoker: " in done.stderr) == (code == 0, code == 0), done.stderr
    assert ("no way" in done.stderr) == ("no way" in line)


def _without_summary(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("stoker: "))


def test_ctrl_c_reaches_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import signal, sys\ntry:\n    print('ready', flush=True)\n    signal.pause()\nexcept KeyboardInterrupt:\n    sys.exit(9)\n"
    )
    process = subprocess.Popen([*RUN, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANG_S)
    assert process.returncode == 9


IMPORTS = {
    "by name": (
        "from torch.utils.data import DataLoader\nassert hasattr(DataLoader(range(8), 2), 'stats')\n"
        "import torch.utils.data as data\nassert hasattr(data.DataLoader(range(8), 2), 'stats')\n"
        "class Mine(data.DataLoader):\n    def __init__(self, *a, **k):\n"
        "        super().__init__(*a, **k)\nloader = Mine(range(8), batch_size=2)"
    ),
    "from its module": "from torch.utils.data.dataloader import DataLoader\nloader = DataLoader(range(8), 2)",
    "through torch": "import torch\nloader = torch.utils.data.DataLoader(range(8), 2)",
    "after a look whether there is one": (
        "import importlib.util\nassert importlib.util.find_spec('torch').loader.get_filename('torch')\n"
        "from torch.utils.data import DataLoader\nloader = DataLoader(range(8), 2)"
    ),
    "torchdata": "from torchdata.stateful_dataloader import StatefulDataLoader\nloader = StatefulDataLoader(range(8), 2)",
    "torchdata, from where it is": (
        "import torch\nfrom torchdata.stateful_dataloader.stateful_dataloader import StatefulDataLoader as S\nloader = S(range(8), 2)"
    ),
    "by importlib": "import importlib\nloader = importlib.import_module('torch.utils.data').DataLoader(range(8), 2)",
}


@pytest.mark.parametrize("name", IMPORTS)
def test_however_it_is_imported(name: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"{IMPORTS[name]}\nimport torch, pickle\nfrom torch.utils.data import DataLoader as D\n"
        "print(len(list(loader)), isinstance(loader, D), isinstance(loader, torch.utils.data.dataloader.DataLoader), hasattr(loader, 'stats'))\n"
        "print(torch.utils.data.DataLoader is torch.utils.data.dataloader.DataLoader, len(pickle.loads(pickle.dumps(D(range(8), 2)))))\n"
    )
    done = call([*RUN, script])
    assert done.stdout.splitlines() == ["4 True True True", "True 4"], done.stderr


def test_a_sitecustomize_of_the_user_still_runs(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\nprint('mine', file=sys.stderr)\nvalue = 5\n")
    (tmp_path / "script.py").write_text(
        "import sitecustomize, sys\nprint(sitecustomize.value, [p for p in sys.path if 'startup' in p])\n"
    )
    done = call([*RUN, "script.py"], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "site")})
    assert (done.stdout, done.stderr) == ("5 []\n", "mine\n" * done.stderr.count("mine"))
    assert "mine" in done.stderr


def test_a_trainer_in_a_package_is_run_with_m(tmp_path: Path) -> None:
    package = tmp_path / "project"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "trainer.py").write_text(
        "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n\nclass Trainer:\n    def __init__(self, epochs):\n"
        "        self.epochs = epochs\n        self.loader = DataLoader(TensorDataset(torch.randn(40, 3)), 4, shuffle=True, num_workers=1)\n"
        "        self.model = torch.nn.Linear(3, 1)\n        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)\n\n"
        "    def fit(self):\n        for _ in range(self.epochs):\n            for (x,) in self.loader:\n                loss = self.model(x).square().mean()\n"
        "                self.optimizer.zero_grad()\n                loss.backward()\n                self.optimizer.step()\n                print(loss.item())\n"
    )
    (package / "train.py").write_text(
        "import sys, torch\nfrom .trainer import Trainer\nif __name__ == '__main__':\n    torch.manual_seed(0)\n    Trainer(int(sys.argv[1])).fit()\n"
    )
    plain = call([sys.executable, "-m", "project.train", 2], cwd=tmp_path)
    ours = call([*RUN, "-m", "project.train", 2], cwd=tmp_path)
    assert plain.returncode == ours.returncode == 0, ours.stderr
    assert ours.stdout == plain.stdout
    assert "20 batches" in ours.stderr


def test_a_lightning_command_line(tmp_path: Path) -> None:
    (tmp_path / "cli.py").write_text(
        f"import sys\nsys.path.insert(0, {str(EXAMPLES)!r})\nimport lightning.pytorch as lightning\nfrom lightning.pytorch.cli import LightningCLI\n"
        "from lightning_module import Classifier, Noisy\nfrom torch.utils.data import DataLoader\n\n"
        "class Data(lightning.LightningDataModule):\n    def train_dataloader(self):\n        return DataLoader(Noisy(), 8, shuffle=True, num_workers=1)\n\n"
        "if __name__ == '__main__':\n    LightningCLI(Classifier, Data, seed_everything_default=0, save_config_callback=None)\n"
    )
    quiet = [
        f"--trainer.{name}=false"
        for name in ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    ]
    words = ["cli.py", "fit", "--trainer.max_epochs=1", "--trainer.accelerator=cpu", *quiet]
    plain = call([sys.executable, *words], cwd=tmp_path)
    ours = call([*RUN, *words], cwd=tmp_path)
    assert plain.returncode == ours.returncode == 0, ours.stderr
    assert "loss" in plain.stdout
    assert ours.stdout == plain.stdout
    assert "12 batches" in ours.stderr


def test_a_plan_leaves_streams_alone(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text("version = 1\n[loader]\nworkers = 'threads'\nnum_workers = 2\n")
    (tmp_path / "script.py").write_text(
        "from torch.utils.data import DataLoader, IterableDataset\nclass Stream(IterableDataset):\n    def __iter__(self):\n"
        "        return iter(range(4))\nprint([int(x) for x in DataLoader(Stream())], [int(x) for x in DataLoader(Stream(), num_workers=1)])\n"
    )
    done = call([*RUN, "--plan", "plan.toml", "script.py"], cwd=tmp_path)
    assert done.stdout == "[0, 1, 2, 3] [0, 1, 2, 3]\n", done.stderr


def test_explicit_arguments_win_over_the_plan(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text("version = 1\n[loader]\nworkers = 'threads'\nnum_workers = 2\nprefetch = 5\n")
    (tmp_path / "script.py").write_text(
        "from torch.utils.data import DataLoader\nfor loader in (DataLoader(range(8)), DataLoader(range(8), num_workers=1, prefetch_factor=3), "
        "DataLoader(range(8), 1, None, None, None, 0)):\n    print(loader.num_workers, loader.prefetch_factor, loader.workers)\n"
    )
    done = call([*RUN, "--plan", "plan.toml", "script.py"], cwd=tmp_path)
    assert done.stdout.splitlines() == ["2 5 threads", "1 3 threads", "0 None threads"], done.stderr
    done = call([*RUN, "--plan", "plan.toml", "--workers", "processes", "script.py"], cwd=tmp_path)
    assert done.stdout.splitlines()[0] == "2 5 processes"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no script was given"),
        (["nothing.py"], "there is no file 'nothing.py'"),
        (["--plan", "missing.toml", "x.py"], "missing.toml cannot be read"),
        (["--plan", "bad.toml", "x.py"], "unknown key 'worker' in [loader]"),
        (["-m"], "-m needs the name"),
        (["--restart-args", "--start-epoch {epoch}", "x.py"], "--restart-args needs --checkpoint"),
        (["--checkpoint", "place", "--restart-args", "--start {x}", "x.py"], "--restart-args knows {epoch} and {step}"),
    ],
)
def test_wrong_use_is_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("version = 1\n[loader]\nworker = 2\n")
    done = call([*RUN, *words], cwd=tmp_path)
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_start_up_costs_little(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import torch\n")

    plain: list[float] = []

    def start(words: list[Any]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert call([*words, "script.py"], cwd=tmp_path).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def extra_s() -> float:
        plain.append(start([sys.executable]))
        return start(RUN) - min(plain)

    assert fastest(extra_s, 0.3) < 0.3


@pytest.mark.parametrize("name", ["images.py", "audio.py"])
def test_cache_for_an_unmodified_script(name: str, data: Path, tmp_path: Path, plainly: Plainly) -> None:
    words = [EXAMPLES / name, *arguments(name, data)]
    plain = plainly([sys.executable, *words])
    plan = tmp_path / "plan.toml"
    plan.write_text(f'version = 1\n[cache]\ncapacity_bytes = 100000000\ndir = "{tmp_path}"\n')
    for _ in range(2):
        cached = call([*RUN, "--plan", plan, *words], cwd=tmp_path)
        assert cached.returncode == 0, cached.stderr
        assert losses(cached.stdout) == losses(plain.stdout)
    found = call([sys.executable, "-m", "stoker", "cache", "ls", "--json", "--dir", tmp_path])
    kept = sum(row["payload_bytes"] for row in json.loads(found.stdout))
    folder = data / {"images.py": "pictures", "audio.py": "sounds"}[name]
    assert kept == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert re.search(r"\d+ % of reads from the cache", cached.stderr), cached.stderr


def read_losses(text: str) -> list[str]:
    return re.findall(r"loss (\S+)", text)


def test_checkpoints_of_an_unmodified_script_that_is_killed_three_times(data: Path, tmp_path: Path) -> None:
    words = [str(EXAMPLES / "images.py"), str(data / "pictures"), "--epochs", "5"]
    whole = read_losses(call([sys.executable, *words]).stdout)
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    place = tmp_path / "checkpoints"
    run = [*RUN, "--checkpoint", str(place), "--checkpoint-every", "3", *words]
    reached: tuple[int, int] = (0, 0)
    for _ in range(3):
        process = subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)  # it cannot run on while nobody reads
        target = (reached[0] + 1, 4)
        for line in process.stdout:
            found = re.match(r"epoch (\d+) batch (\d+) loss (\S+)", line)
            if found and (here := (int(found[1]), int(found[2]))) >= target:
                reached = here
                break
        process.kill()
        process.communicate()
    done = call(run)
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"stoker: restored step \d+, in epoch \d+: 1 module, 1 optimizer, 1 scheduler, the training loader", done.stderr
    )
    resumed = read_losses(done.stdout)
    assert len(resumed) >= 10
    assert resumed == whole[-len(resumed) :]  # from the epoch on in which it was, and none before
    again = call(run)
    assert (again.returncode, again.stdout) == (0, "")
    assert "this run is finished" in again.stderr and len(again.stderr.splitlines()) == 1
