"""How far a script is, also where it makes a loader for each epoch."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.live.rows import FACTS

from stoker.host import process
from stoker.live.folder import publish
from stoker.live.record import Record
from stoker.meter import Meter
from stoker.schedule.marks import Marks
from stoker.schedule.steps import CountedLoop

ANEW = """
import json, sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader

def told():
    try:
        return json.loads(Path(sys.argv[1]).read_text())["batches"]
    except OSError:
        return 0

done = 0
for epoch in range(3):
    for batch in DataLoader(range(32), batch_size=4, shuffle=True):
        done += 1
        while done % 8 == 7 and told() < done:
            time.sleep(0.01)
    with torch.no_grad():
        for batch in DataLoader(range(400), batch_size=4):
            pass
"""


class _Progress:
    epoch, batches = 0, 0


def tell(record: Record, batches: int, at: float) -> None:
    meter = Meter()
    meter.batches = meter.samples = batches
    record.tell(meter, _Progress(), at)


def test_loaders_of_each_epoch_count_on_and_those_that_only_evaluate_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_TOP", str(tmp_path / "own"))
    own = process.find(os.getpid())
    assert own is not None
    facts = replace(FACTS, pid=os.getpid(), started=own.started, namespace=process.namespace(), rank=None)
    loop, counted = CountedLoop(os.getpid()), []
    for epoch in range(3):
        for role, batches, at in (("eval", 900, 10.0 * epoch + 2), ("train", 25, 10.0 * epoch + 5)):
            record = publish(replace(facts, number=2 * epoch, made_at=at - 1))
            assert record is not None
            record.role(role)
            tell(record, batches, at)
            counted.append(loop.look())
            record.close()
    assert [steps and (steps.batches, steps.left_at) for steps in counted] == [
        (900, 2.0),  # nothing trains yet
        (25, 5.0),
        (25, 5.0),
        (50, 15.0),
        (50, 15.0),
        (75, 25.0),
    ]
    loop.close()


def test_a_lease_tells_the_iterations_of_a_script_that_makes_its_loader_anew(tmp_path: Path) -> None:
    script = tmp_path / "anew.py"
    script.write_text(ANEW)
    marks = Marks(tmp_path / "job", 1)
    marks.make()
    words = [str(script), str(marks.folder / "progress")]
    job = {"words": words, "folder": str(tmp_path), "environment": dict(os.environ), "seed": 1, "options": []}
    (marks.job / "job.json").write_text(json.dumps(job | {"restartable": False}))
    command = [sys.executable, "-m", "stoker.schedule.lease", str(marks.job), "1", "1.0"]
    done = subprocess.run(command, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    progress = marks.read("progress")
    assert progress is not None
    assert progress["batches"] == 24  # the last of them came after the last time that anybody looked before the end
