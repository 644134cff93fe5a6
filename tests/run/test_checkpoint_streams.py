"""`stoker run --checkpoint` with streams that have a state: it is in the checkpoint, and nothing is read again."""

from pathlib import Path

import pytest
from tests.run.restarted import Script, Starter
from tests.run.test_checkpoint import HEAD

STREAM = (
    HEAD
    + """
from torch.utils.data import IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

class Stream(IterableDataset):
    def __init__(self, is_large):
        self.is_large = is_large
        self.place, self.draws, self.loaded = 0, torch.Generator(), False
    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        if not self.loaded:
            self.place = 0
            self.draws.manual_seed(first)
        self.loaded = False
        while self.place < 60 // step:
            number = first + step * self.place
            self.place += 1
            with open("read.txt", "a") as file:
                file.write(f"{number}\\n")
            yield torch.rand(8, generator=self.draws) + number, number % 3
    def state_dict(self):
        large = {"bytes": bytes([self.place]) * 70000, "tensor": torch.full((40000,), self.place)} if self.is_large else {}
        return {"place": self.place, "draws": self.draws.get_state(), **large}
    def load_state_dict(self, state):
        self.place, self.loaded = state["place"], True
        self.draws.set_state(state["draws"])
        if self.is_large:
            assert state["bytes"] == bytes([self.place]) * 70000 and state["tensor"].eq(self.place).all()

def main(workers, epochs, is_large):
    model = network()
    loader = StatefulDataLoader(Stream(is_large), batch_size=5, num_workers=workers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(epochs):
        for batch, (x, y) in enumerate(loader):
            print(f"epoch {epoch} batch {batch} loss {train(model, optimizer, x, y).hex()}", flush=True)

main(int(sys.argv[1]), 3, len(sys.argv) > 2)
"""
)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_goes_on_from_its_state(workers: int, starter: Starter, tmp_path: Path) -> None:
    script = Script(starter, tmp_path, STREAM, workers)
    script.check_restarts("epoch 0 batch 8", "epoch 2 batch 7")
    read = len((tmp_path / "read.txt").read_text().splitlines())
    assert read < 3 * 60 + 2 * 8 * 5  # what was under way, and what came after a checkpoint; not the epoch's beginning


@pytest.mark.parametrize("workers", [0, 2])
def test_large_states_are_saved_as_they_are(workers: int, starter: Starter, tmp_path: Path) -> None:
    script = Script(starter, tmp_path, STREAM, workers, "large")
    script.check_restarts("epoch 1 batch 5")
    manifests = list(script.checkpoints.glob("*-*.json"))
    assert manifests and all(path.stat().st_size < 70000 for path in manifests)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_finished_run_leaves_a_last_checkpoint_and_goes_on_with_more_to_do(
    workers: int, starter: Starter, tmp_path: Path
) -> None:
    text = STREAM.replace("60 // step", "50 // step").replace("3, len(sys.argv) > 2)", "int(sys.argv[2]), False)")
    whole = Script(starter, tmp_path, text, workers, 3).plain().losses
    script = Script(starter, tmp_path, text, workers)
    ended = script.start(more=("2",))
    assert ended.losses == whole[:20]
    assert any("the last of step 20" in line for line in ended.ours)  # which is none of every third
    assert "this run is finished" in script.start(more=("2",)).lines[0]
    assert script.start(more=("3",)).since_restored == whole[20:]
