"""ResNet-18 on JPEG files with a GPU: what `stoker analyze` says, and real runs beside its predictions."""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import harness
import workloads
from stoker.decide.model import Share, predict
from stoker.measure import files
from stoker.profile import Profile

SCRIPT = Path(__file__).parents[1] / "examples" / "unmodified" / "resnet18.py"


def write(where: tuple[str, int]) -> None:
    folder, number = where
    path = Path(folder) / str(number % 4) / f"{number:05d}.jpg"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(workloads.jpeg(number % 64))


def speed(words: list[str], folder: str) -> float:
    """Samples per second in the last epoch."""
    done = subprocess.run([sys.executable, "-W", "ignore", *words], capture_output=True, text=True)
    found = re.findall(r"epoch \d+: ([\d.]+) samples/s", done.stdout)
    if not found:
        raise RuntimeError(done.stderr)
    return float(found[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--pictures", type=int, default=16384)
    parser.add_argument("--workers", type=int, nargs="+", default=[14, 6])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--profile", type=Path, help="compare real runs with this one, instead of making one")
    parser.add_argument("--time", type=float, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with ProcessPoolExecutor() as pool:
            list(pool.map(write, [(folder, number) for number in range(options.pictures)], chunksize=64))
        os.sync()
        profile_path = options.profile or options.out / "profile.json"
        own = ["--batch", str(options.batch), "--workers", str(options.workers[0])]
        command = ["-m", "stoker", "analyze", "--json", str(profile_path), "--time", str(options.time)]
        if options.profile is None:
            analyze = [*command, str(SCRIPT), folder, *own, "--epochs", "1000"]
            done = subprocess.run([sys.executable, "-W", "ignore", *analyze], capture_output=True, text=True)
            (options.out / "report.txt").write_text(done.stdout + done.stderr)
            print(done.stdout, flush=True)
        profile = Profile.load(profile_path)
        paths = [str(path) for path in Path(folder).glob("*/*.jpg")]
        for workers in options.workers:
            files.warm(paths)
            words = [str(SCRIPT), folder, "--batch", str(options.batch), "--workers", str(workers), "--epochs", "2"]
            real = speed(["-m", "stoker", "run", *words], folder)
            expected = predict(profile.rates, Share(workers=workers, cached=1.0)).rate
            speeds = {"predicted": expected, "real": real}
            harness.report("analyze on a GPU: all in memory", ratio=expected / real, workers=workers, **speeds)
        plain = speed([str(SCRIPT), folder, *own, "--epochs", "2"], folder)
        harness.report("the same with torch's loader", ratio=plain / profile.speed.cached, real=plain)


if __name__ == "__main__":
    main()
