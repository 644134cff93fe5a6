"""Analyse a training script on a slow disk, follow the advice, and compare. `make demo` runs it, in about two minutes.

The script is examples/unmodified/imagined_device.py, as it is. Its pictures are read, decoded and cropped for real; its
accelerator is imagined: for each batch the loop sleeps for the 20 ms that one might take, and leaves the cores to the
workers, as it would with a real one. The disk is limited to 10 MB/s where that is permitted (root, and the blkio controller
of cgroup v1); elsewhere it is as fast as it is. Somebody else uses the host's memory: what the page cache holds of the
pictures is dropped again and again, in all runs alike.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from stoker.measure import files
from stoker.profile import Profile

HERE = Path(__file__).parent
PLACE = Path(".demo")
PICTURES, EPOCHS = 800, 3
DISK = 10_000_000
GROUP = Path("/sys/fs/cgroup/blkio/stoker-demo")


def make_pictures() -> list[str]:
    """JPEG files of about 100 KB, made once."""
    rng = np.random.default_rng(0)
    made = []
    for number in range(PICTURES):
        path = PLACE / "pictures" / ("calm", "busy")[number % 2] / f"{number:05d}.jpg"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            detail = (60, 240)[number % 2]
            coarse = Image.fromarray(rng.integers(0, 256, (detail, detail, 3), dtype=np.uint8))
            coarse.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=97)
        made.append(str(path))
    os.sync()
    return made


@contextlib.contextmanager
def slow_disk() -> Iterator[bool]:
    """A group of processes that gets little from the disk, if that is permitted."""
    device = os.stat(PLACE).st_dev
    try:
        GROUP.mkdir(exist_ok=True)
        limit = f"{os.major(device)}:{os.minor(device)} {DISK}"
        (GROUP / "blkio.throttle.read_bps_device").write_text(limit)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        for _ in range(50):
            with contextlib.suppress(OSError):
                GROUP.rmdir()
                break
            time.sleep(0.1)


def join_group() -> None:
    (GROUP / "cgroup.procs").write_text(str(os.getpid()))


def run(words: list[str], limited: bool) -> float:
    """Samples per second in the epochs of a run, without the first, which may fill a cache."""
    done = subprocess.run(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        preexec_fn=join_group if limited else None,
    )
    if done.returncode:
        raise SystemExit(f"{words} failed")
    rates = [float(line.split()[-2]) for line in done.stdout.splitlines()]
    return statistics.harmonic_mean(rates[1:])


def main() -> None:
    print("making pictures ...", flush=True)
    paths = make_pictures()
    script = [str(HERE / "unmodified" / "imagined_device.py"), str(PLACE / "pictures"), "--epochs", str(EPOCHS)]
    profile = PLACE / "profile.json"
    with slow_disk() as limited:
        how = "limited to 10 MB/s" if limited else "as fast as it is: limiting it is not permitted here"
        print(f"the disk is {how}\n\n$ stoker analyze {' '.join(script)}\n", flush=True)
        endless = [*script[:-1], "1000"]
        analyze = [sys.executable, "-W", "ignore", "-m", "stoker", "analyze", "--json", str(profile), "--time", "4"]
        with (PLACE / "script.log").open("w") as log:
            join = join_group if limited else None
            shown = subprocess.Popen([*analyze, *endless], stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=join)
            report, _ = shown.communicate()
        if shown.returncode:
            raise SystemExit((PLACE / "script.log").read_text())
        print(report, flush=True)
        stop = threading.Event()

        def use_memory() -> None:
            while not stop.wait(0.5):
                files.cool(paths)

        other = threading.Thread(target=use_memory)
        other.start()
        try:
            print(f"$ python {' '.join(script)}", flush=True)
            before = run(script, limited)
            print(f"$ stoker run --plan {PLACE / 'plan.toml'} {' '.join(script)}", flush=True)
            after = run(["-m", "stoker", "run", "--plan", str(PLACE / "plan.toml"), *script], limited)
        finally:
            stop.set()
            other.join()
    subprocess.run([sys.executable, "-m", "stoker", "cache", "clear"], stdout=subprocess.DEVNULL, check=True)
    rates = Profile.load(profile).rates
    could = min(rates.gpu, rates.prep)
    print(f"\nbefore: {before:,.0f} samples/s, after: {after:,.0f} samples/s, {after / before:.1f} times as fast;")
    print(f"{after / could:.2f} of what the loop and the workers could do with no storage at all ({could:,.0f})")


if __name__ == "__main__":
    main()
