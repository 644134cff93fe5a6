"""Two epochs under Accelerate, as one process of several.

`OUT STATE SEEN` saves everything to STATE after so many batches, and ends; `OUT STATE` goes on from there; with `OUT` alone
nothing interrupts it. What each process was given, batch by batch, goes to a file in OUT.
"""

import json
import sys
import warnings
from pathlib import Path

import accelerate
from accelerate.utils import DataLoaderConfiguration

import stoker
from stoker.torch.accelerate import prepare

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.datasets import Augmented

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    out, folder, seen = (*sys.argv[1:], None, None)[:3]
    config = DataLoaderConfiguration(use_stateful_dataloader=True)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=config)
    loader = prepare(accelerator, stoker.DataLoader(Augmented(40), batch_size=4, num_workers=2, shuffle=True, seed=3))
    assert isinstance(loader.base_dataloader, stoker.DataLoader)
    if folder is not None and seen is None:
        accelerator.load_state(folder)
    number = 0
    batches = []
    for _ in range(2):
        for *drawn, labels in loader:
            batches.append([labels.tolist(), *(values.tolist() for values in drawn)])
            number += 1
            if seen is not None and number == int(seen):
                accelerator.save_state(folder)
                break
        if seen is not None and number == int(seen):
            break
    (Path(out) / f"{accelerator.process_index} of {accelerator.num_processes}").write_text(json.dumps(batches))
    accelerator.end_training()
