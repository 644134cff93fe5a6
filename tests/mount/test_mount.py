"""`stoker run --mount`: a script, unchanged, that reads from a folder which is not there without it."""

import hashlib
import importlib.util
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.source.bucket_server import BucketServer
from tests.tries import HANG_S

CLASSES = ("cat", "dog", "eel")

TRAIN = """
import os, sys, torch
import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, Dataset

class Folder(Dataset):  # as torchvision's ImageFolder does it
    def __init__(self, root):
        self.classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.samples = [(os.path.join(place, name), label) for label, each in enumerate(self.classes)
                        for place, _, names in sorted(os.walk(os.path.join(root, each))) for name in sorted(names)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        with open(path, "rb") as file:
            pixels = np.asarray(Image.open(file).convert("RGB"), np.float32) / 255
        return torch.from_numpy(pixels).permute(2, 0, 1) + 0.01 * torch.randn(3, 1, 1), label

if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Folder(sys.argv[1]), 8, shuffle=True, num_workers=2)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 24 * 24, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for epoch in range(2):
        for pixels, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(pixels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(epoch, loss.item().hex())
        if len(sys.argv) > 2 and not epoch:
            os.rename(sys.argv[2], sys.argv[2] + ".gone")  # the storage, and what the kernel has of the mounted files
            for path, _ in loader.dataset.samples:
                with open(path, "rb", buffering=0) as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
"""


def why_no_fuse() -> str:
    if importlib.util.find_spec("mfusepy") is None:
        return "mfusepy is not installed: pip install 'stoker[mount]'"
    try:
        import mfusepy  # noqa: F401
    except OSError as error:
        return f"libfuse is not installed: {error}"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"/dev/fuse cannot be used: {error}"
    return ""


@pytest.fixture
def fuse() -> None:
    if trouble := why_no_fuse():
        pytest.skip(trouble)


@pytest.fixture(params=["fuse", "python"])
def way(request: pytest.FixtureRequest) -> str:
    if request.param == "fuse" and (trouble := why_no_fuse()):
        pytest.skip(trouble)
    return str(request.param)


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    root, rng = tmp_path / "bucket", np.random.default_rng(0)
    for number in range(48):
        path = root / CLASSES[number % 3] / "more" / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(path)
        os.utime(path, (1, 1))
    (root / "labels.json").write_text("{}")
    os.utime(root / "labels.json", (1, 1))
    return root


@pytest.fixture
def options(bucket: Path, tmp_path: Path) -> list[str]:
    plan = tmp_path / "plan.toml"
    plan.write_text(f'version = 1\n[cache]\ncapacity_bytes = 100000000\ndir = "{tmp_path / "shelf"}"\n')
    return ["--plan", str(plan), "--mount", f"file://{bucket}={tmp_path / 'data'}"]


def run(options: list[str], *words: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "stoker", "run", *options, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "script.py"
    path.write_text(text)
    return path


def test_training_has_the_same_losses_and_asks_storage_once(
    bucket: Path, tmp_path: Path, options: list[str], way: str
) -> None:
    train = script(tmp_path, TRAIN)
    plain = subprocess.run([sys.executable, train, bucket], capture_output=True, text=True, timeout=HANG_S)
    assert plain.returncode == 0, plain.stderr
    mounted = run(
        [*options, "--mount-by", way], train, tmp_path / "data", bucket
    )  # after the first epoch the storage is gone
    assert mounted.returncode == 0, mounted.stderr
    assert mounted.stdout == plain.stdout
    assert len(plain.stdout.splitlines()) == 12
    said = {
        "fuse": "by FUSE: ",
        "python": "for Python alone, not for libraries in C or other programs (--mount-by python): ",
    }
    assert f"{said[way]}read-only, 49 files" in mounted.stderr
    assert not (tmp_path / "data" / "labels.json").exists()


def test_a_bucket_is_listed_once_and_each_object_is_got_once(
    bucket: Path, tmp_path: Path, options: list[str], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = BucketServer(page=20)
    by = [*options[:2], "--mount-by", way]
    try:
        for path in bucket.rglob("*"):
            if path.is_file():
                server.objects[f"train/{path.relative_to(bucket)}"] = path.read_bytes()
        credentials = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
        for name, value in {"AWS_ENDPOINT_URL": server.address, "XDG_CACHE_HOME": str(tmp_path), **credentials}.items():
            monkeypatch.setenv(name, value)
        train = script(tmp_path, TRAIN)
        plain = subprocess.run([sys.executable, train, bucket], capture_output=True, text=True, timeout=HANG_S)
        mounted = run([*by, "--mount", f"s3://bucket/train={tmp_path / 'data'}"], train, tmp_path / "data")
        assert (mounted.returncode, mounted.stdout) == (0, plain.stdout), mounted.stderr
        assert server.pages == 3
        assert {key: count for key, count in server.gets.items() if count} == {
            key: 1 for key in server.objects if key.endswith(".png")
        }
        gone = run([*by, "--mount", f"s3://typo/train={tmp_path / 'data'}"], train, tmp_path / "data")
        assert gone.returncode == 1
        assert "typo" in gone.stderr
        assert len(gone.stderr.splitlines()) == 1
    finally:
        server.close()


def test_what_was_pulled_before_is_not_got_again(
    bucket: Path, tmp_path: Path, options: list[str], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = BucketServer()
    try:
        for path in bucket.rglob("*.png"):
            server.objects[f"train/{path.relative_to(bucket)}"] = path.read_bytes()
        credentials = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
        for name, value in {"AWS_ENDPOINT_URL": server.address, "XDG_CACHE_HOME": str(tmp_path), **credentials}.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "shelf").mkdir()
        pull = [sys.executable, "-m", "stoker", "cache", "pull", "s3://bucket/train/", "--dir", str(tmp_path / "shelf")]
        pulled = subprocess.run(pull, capture_output=True, text=True, timeout=HANG_S)
        assert pulled.returncode == 0, pulled.stderr
        assert sum(server.gets.values()) == 48
        server.forget()
        by = [*options[:2], "--mount-by", way, "--mount", f"s3://bucket/train={tmp_path / 'data'}"]
        mounted = run(by, script(tmp_path, TRAIN), tmp_path / "data")
        assert mounted.returncode == 0, mounted.stderr
        assert server.gets == {}
    finally:
        server.close()


@pytest.mark.usefixtures("fuse")
def test_readers_in_c_see_the_same_bytes_and_nobody_can_write(bucket: Path, tmp_path: Path, options: list[str]) -> None:
    look = f"""
import os, subprocess
os.chdir({str(tmp_path / "data")!r})
print(subprocess.run("find . -type f | sort | xargs sha256sum", shell=True, capture_output=True, text=True).stdout, end="")
print(sorted(os.listdir(".")), os.stat("labels.json").st_size)
with open("cat/more/00.png", "rb") as file:
    file.seek(100)
    print(file.read(50).hex())
for path in ("labels.json", "new"):
    try:
        open(path, "w")
    except OSError as error:
        print(error.strerror)
"""
    found = run(options, script(tmp_path, look))
    assert found.returncode == 0, found.stderr
    paths = sorted(path for path in bucket.rglob("*") if path.is_file())
    lines = found.stdout.splitlines()
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  ./{path.relative_to(bucket)}" for path in paths]
    assert sorted(lines[:49]) == sorted(sums)
    assert lines[49] == "['cat', 'dog', 'eel', 'labels.json'] 2"
    assert lines[50] == (bucket / "cat/more/00.png").read_bytes()[100:150].hex()
    assert lines[51:] == ["Read-only file system"] * 2


def test_a_file_that_changed_is_a_clear_error(bucket: Path, tmp_path: Path, options: list[str], way: str) -> None:
    text = f"import os\nopen({str(bucket / 'labels.json')!r}, 'w').write('[1, 2]')\n"
    text += (
        f"try:\n    open({str(tmp_path / 'data/labels.json')!r}).read()\nexcept OSError as error:\n    print(error.errno)\n"
    )
    found = run([*options, "--mount-by", way], script(tmp_path, text))
    assert (found.returncode, found.stdout) == (0, "116\n"), found.stderr
    assert "/labels.json has changed since the folder was mounted" in found.stderr


def test_what_a_store_does_not_give_has_its_own_error_and_one_line(
    tmp_path: Path, options: list[str], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = BucketServer()
    try:
        server.objects.update({f"train/{name}": b"before" for name in ("changed", "gone", "refused")})
        credentials = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
        for name, value in {"AWS_ENDPOINT_URL": server.address, "XDG_CACHE_HOME": str(tmp_path), **credentials}.items():
            monkeypatch.setenv(name, value)
        look = f"""
import sys
print("here", flush=True)
sys.stdin.read()
for name in ("changed", "gone", "refused"):
    try:
        open({str(tmp_path / "data")!r} + "/" + name, buffering=0, mode="rb").read()
    except OSError as error:
        print(error.errno, str(error).count("[Errno"))
"""
        by = [*options[:2], "--mount-by", way, "--mount", f"s3://bucket/train={tmp_path / 'data'}"]
        words = [sys.executable, "-m", "stoker", "run", *by, str(script(tmp_path, look))]
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
            assert child.stdout is not None and child.stdout.readline() == "here\n"
            server.objects["train/changed"] = b"afterwards"
            del server.objects["train/gone"]
            server.faults["train/refused"].extend([403] * 9)
            said, told = child.communicate(timeout=HANG_S)
        assert said == "116 1\n2 1\n13 1\n", told
        assert "/changed has changed since the folder was mounted" in told
        assert len(told.splitlines()) == 2, told
    finally:
        server.close()


@pytest.mark.usefixtures("fuse")
def test_the_folder_is_gone_when_the_run_is_killed(tmp_path: Path, options: list[str]) -> None:
    sleeper = script(tmp_path, "import sys, time\nprint('here', flush=True)\nsys.stdin.read()\n")
    command = [sys.executable, "-m", "stoker", "run", *options, str(sleeper)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "here\n"
        servers = [int(name) for name in os.listdir("/proc") if name.isdigit() and _serves(int(name), tmp_path / "data")]
        assert len(servers) == 1
        gone = os.pidfd_open(servers[0])
        child.send_signal(signal.SIGKILL)
        child.wait(HANG_S)
    poll = select.poll()
    poll.register(gone, select.POLLIN)
    assert poll.poll(HANG_S * 1000)
    os.close(gone)
    assert str(tmp_path / "data") not in Path("/proc/mounts").read_text()
    assert list((tmp_path / "data").iterdir()) == []


def _serves(pid: int, folder: Path) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"stoker.mount" in words and any(os.fsencode(f'"{folder}"') in word for word in words)


def test_what_cannot_be_mounted_is_said(bucket: Path, tmp_path: Path, options: list[str], way: str) -> None:
    nothing = script(tmp_path, "")
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    plan = options[:2]
    for mount, said in (
        ([*plan, "--mount", str(bucket)], "--mount is URL=DIR"),
        ([*plan, "--mount", f"{bucket}={full}"], "is not empty"),
        ([*plan, "--mount", f"{bucket / 'typo'}={tmp_path / 'data'}"], "there is no folder"),
        (["--mount", f"{bucket}={tmp_path / 'data'}"], "--mount needs --cache"),
        ([*plan, "--peers", "auto", "--mount", f"{bucket}={tmp_path / 'data'}"], "does not go with --peers"),
    ):
        found = run([*mount, "--mount-by", way], nothing)
        assert (found.returncode, found.stdout) == (1, "")
        assert said in found.stderr
        assert len(found.stderr.splitlines()) == 1
