"""How much sooner do unmodified scripts end an epoch under `stoker run`? And what does it cost to start?"""

import itertools
import re
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import harness

EXAMPLES = Path(__file__).parents[1] / "examples" / "unmodified"
PREFIXES = {"python": [sys.executable], "stoker run": [sys.executable, "-m", "stoker", "run"]}


def seconds(name: str, *words: str) -> float:
    began = time.perf_counter()
    subprocess.run([*PREFIXES[name], *words], check=True, capture_output=True)
    return time.perf_counter() - began


def epoch_s(name: str, *words: str) -> float:
    """Seconds of an epoch, by the moments of the lines that a script prints at the end of each."""
    process = subprocess.Popen([*PREFIXES[name], *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    moments = [time.perf_counter() for line in process.stdout if re.match(r"epoch \d+ (correct|total)", line)]
    process.wait()
    return statistics.median(after - before for before, after in itertools.pairwise(moments))


def main() -> None:
    count = harness.rounds()
    with tempfile.TemporaryDirectory(dir=".") as place:
        seconds("python", str(EXAMPLES / "make_data.py"), place, "--pictures", "1600", "--sounds", "0")
        (Path(place) / "empty.py").write_text("import torch\n")
        scripts = {
            "images": [str(EXAMPLES / "images.py"), f"{place}/pictures", "--epochs", "4", "--batch", "64"],
            "small samples": [str(EXAMPLES / "small_samples.py"), "--epochs", "5"],
        }
        for script, words in scripts.items():
            times = harness.alternate({name: partial(epoch_s, name, *words) for name in PREFIXES}, count)
            harness.report(
                f"an epoch of the unmodified example: {script}",
                ratio=times.ratio("python", "stoker run"),
                seconds=times.medians(),
            )
        times = harness.alternate({name: partial(seconds, name, f"{place}/empty.py") for name in PREFIXES}, 2 * count)
        harness.report(
            "seconds to start a script that imports torch",
            ratio=times.ratio("python", "stoker run"),
            seconds=times.medians(),
            beyond_python_s=times.median("stoker run") - times.median("python"),
        )


if __name__ == "__main__":
    main()
