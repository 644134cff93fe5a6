"""`stoker run --checkpoint`: scripts as people write them are killed, and go on as if they had not been."""

from pathlib import Path

import pytest
import torch
from tests.run.restarted import Script, Starter

HEAD = """
import random, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Noisy(Dataset):
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        return torch.full((8,), index / self.count) + random.random() + torch.randn(8), index % 3

class Quiet(Noisy):
    def __getitem__(self, index):
        return torch.full((8,), index / self.count), index % 3

def network():
    torch.manual_seed(0)
    random.seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.BatchNorm1d(8), nn.Linear(8, 3))

def train(model, optimizer, x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()

def validate(model, loader):
    model.eval()
    with torch.no_grad():
        loss = sum(nn.functional.cross_entropy(model(x), y).item() for x, y in loader)
    model.train()
    return loss

def ahead(loader):
    first = True
    for following in loader:
        if not first:
            yield batch
        first, batch = False, following
    yield batch
"""

PLAIN = (
    HEAD
    + """
def main(workers, epochs):
    model = network()
    loader = DataLoader(Noisy(60), 5, shuffle=True, num_workers=workers)
    valid = DataLoader(Noisy(20), 5, num_workers=workers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
    for epoch in range(epochs):
        for batch, (x, y) in enumerate(loader):
            print(f"epoch {epoch} batch {batch} loss {train(model, optimizer, x, y).hex()}", flush=True)
        schedule.step()
        print(f"epoch {epoch} validation {validate(model, valid).hex()}", flush=True)

main(int(sys.argv[1]), int(sys.argv[2]))
"""
)

MOMENTS = ("epoch 0 batch 8", "epoch 2 batch 5", "epoch 3 batch 11")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_loop_begins_with_the_epoch_it_was_in(workers: int, starter: Starter, tmp_path: Path) -> None:
    script = Script(starter, tmp_path, PLAIN, workers, 5)
    ended = script.check_restarts(*MOMENTS[:2], "epoch 3 validation")
    assert not any(line.startswith("epoch 0") for line in ended.lines)  # nothing is passed
    assert "restored step 45, in epoch 4: 1 module, 1 optimizer, 1 scheduler, the training loader" in ended.ours[0]


def test_a_finished_run_ends_at_once_and_goes_on_with_more_to_do(starter: Starter, tmp_path: Path) -> None:
    script = Script(starter, tmp_path, PLAIN, 0)
    whole = Script(starter, tmp_path, PLAIN, 0, 4).plain().losses
    assert script.start(more=("2",)).losses == whole[: 2 * 13]
    again = script.start(more=("2",))
    assert (again.code, again.losses) == (0, [])
    assert "this run is finished" in again.lines[0] and len(again.lines) == 1
    (script.checkpoints / "finished.json").unlink()  # killed after its last checkpoint, and before it was done
    assert "this run is finished" in script.start(more=("2",)).lines[0]
    assert script.start(more=("4",)).since_restored == whole[2 * 13 :]
    refused = script.start(more=("3",))
    assert refused.code == 1 and refused.losses == []
    assert "stoker: the checkpoint is after number 3 of the loop" in refused.lines[-1] and len(refused.lines) == 1


def test_weights_that_are_loaded_at_the_end_are_not_gone_on_from(starter: Starter, tmp_path: Path) -> None:
    """The best ones, for a test."""
    end = "    model.load_state_dict({name: 0 * value for name, value in model.state_dict().items()})\n\nmain("
    whole = Script(starter, tmp_path, PLAIN, 0, 3).plain().losses
    script = Script(starter, tmp_path, PLAIN.replace("\nmain(", end), 0)
    script.start(more=("2",))
    going_on = script.start(more=("3",)).since_restored
    assert going_on == whole[-len(going_on) :] and going_on[0].startswith("epoch 1 batch")


@pytest.mark.parametrize("end", ["sys.exit(3)", "try: signal.raise_signal(2)\nexcept KeyboardInterrupt: pass"])
def test_a_run_that_failed_or_was_interrupted_is_not_finished(end: str, starter: Starter, tmp_path: Path) -> None:
    script = Script(starter, tmp_path, f"{PLAIN}\nimport signal\n{end}", 0, 1)
    script.start()
    again = script.start()
    assert not any("is finished" in line for line in again.lines)
    assert again.since_restored


def test_a_run_that_is_told_to_end_saves_itself(starter: Starter, tmp_path: Path) -> None:
    stop = "            if epoch == 1 and batch == 4 and sys.argv[3:]: signal.raise_signal(15)\n        schedule.step()"
    text = PLAIN.replace("        schedule.step()", stop).replace("import random", "import random, signal")
    script = Script(starter, tmp_path, text, 0, 2)
    ended = script.start(more=("stop",))
    assert ended.code == 75 and ended.losses[-1].startswith("epoch 1 batch 4")
    assert script.start().since_restored[0].startswith("epoch 1 batch 5")


def test_a_run_that_is_told_to_end_in_its_first_steps_makes_a_few_more_and_saves_itself(
    starter: Starter, tmp_path: Path
) -> None:
    """After one or two updates nobody can tell yet what was read ahead."""
    stop = "            if epoch == 0 and batch == 1 and sys.argv[3:]: signal.raise_signal(10)\n        schedule.step()"
    text = PLAIN.replace("        schedule.step()", stop).replace("import random", "import random, signal")
    script = Script(starter, tmp_path, text, 0, 1)
    whole = script.plain().losses
    ended = script.start(more=("stop",))
    assert ended.code == 75 and 2 < len(ended.losses) < 12
    assert script.start().since_restored == whole[len(ended.losses) :]


LOOKAHEAD = (
    HEAD
    + """
def main(workers, group):
    model = network()
    loader = DataLoader(Noisy(65), 5, shuffle=True, num_workers=workers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=4)
    for epoch in range(5):
        for batch, (x, y) in enumerate(ahead(loader)):
            loss = nn.functional.cross_entropy(model(x), y) / group
            if batch == 8:
                loss = loss * float("inf")  # the scaler skips this step
            scaler.scale(loss).backward()
            if (batch + 1) % group == 0 or batch + 1 == len(loader):
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            print(f"epoch {epoch} batch {batch} loss {loss.item().hex()}", flush=True)

main(int(sys.argv[1]), int(sys.argv[2]))
"""
)


@pytest.mark.parametrize(("workers", "group"), [(0, 1), (2, 3)])
def test_a_batch_that_is_read_ahead_is_not_lost(workers: int, group: int, starter: Starter, tmp_path: Path) -> None:
    """With accumulation, a last group that is shorter, and steps that a gradient scaler skips."""
    Script(starter, tmp_path, LOOKAHEAD, workers, group).check_restarts(
        "epoch 1 batch 12", "epoch 2 batch 10", "epoch 3 batch 12"
    )


ACCELERATE = (
    HEAD
    + """
from accelerate import Accelerator

def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = network()
    loader = DataLoader(Noisy(60), 5, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(4):
        for batch, (x, y) in enumerate(loader):
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            print(f"epoch {epoch} batch {batch} loss {loss.item().hex()}", flush=True)

main()
"""
)


def test_accelerate(starter: Starter, tmp_path: Path) -> None:
    Script(starter, tmp_path, ACCELERATE).check_restarts("epoch 1 batch 9", "epoch 3 batch 1")


ENDLESS = (
    HEAD
    + """
class Repeated:
    def __init__(self, sampler):
        self.sampler = sampler
    def __iter__(self):
        while True:
            yield from self.sampler

class Endless(DataLoader):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator = super().__iter__()
    def __len__(self):
        return len(self.batch_sampler.sampler)
    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)

def main(workers, reads_ahead):
    own = torch.Generator().manual_seed(5) if reads_ahead else None
    loader = Endless(Quiet(60) if workers else Noisy(60), 5, shuffle=True, num_workers=workers, generator=own)
    valid = DataLoader(Quiet(20), 5, num_workers=workers, persistent_workers=workers > 0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(5):
        for batch, (x, y) in enumerate(ahead(loader) if reads_ahead else loader):
            print(f"epoch {epoch} batch {batch} loss {train(model, optimizer, x, y).hex()}", flush=True)
        print(f"epoch {epoch} validation {validate(model, valid).hex()}", flush=True)

main(int(sys.argv[1]), int(sys.argv[2]))
"""
)


@pytest.mark.parametrize(("workers", "reads_ahead"), [(0, 0), (2, 1)])
def test_a_loader_without_an_end(workers: int, reads_ahead: int, starter: Starter, tmp_path: Path) -> None:
    """Its iterator is made before there is a model, and never ends."""
    Script(starter, tmp_path, ENDLESS, workers, reads_ahead).check_restarts(*MOMENTS)


WHILE = (
    HEAD
    + """
class Trainer:
    def __init__(self):
        self.model, self.steps, self.most = network(), 0, 45
        self.loader = DataLoader(Noisy(60), 5, shuffle=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
    def run(self):
        batches = iter(self.loader)
        while True:
            try:
                x, y = next(batches)
            except StopIteration:
                batches = iter(self.loader)
                x, y = next(batches)
            print(f"step {self.steps} loss {train(self.model, self.optimizer, x, y).hex()}", flush=True)
            self.steps += 1
            if self.steps >= self.most:
                break

def again():
    model, optimizer = network(), None
    loader = DataLoader(Noisy(60), 5, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = 0
    while step < 45:
        for x, y in loader:
            print(f"step {step} loss {train(model, optimizer, x, y).hex()}", flush=True)
            step += 1
            if step == 45:
                break

Trainer().run() if sys.argv[1] == "attribute" else again()
"""
)


@pytest.mark.parametrize("counter", ["attribute", "variable"])
def test_steps_that_a_script_counts_itself(counter: str, starter: Starter, tmp_path: Path) -> None:
    Script(starter, tmp_path, WHILE, counter).check_restarts("step 5", "step 30")


PAIRS = (
    HEAD
    + """
model = network()
left, right = (DataLoader(Noisy(count), 5, shuffle=True) for count in (60, 90))
first, second = (torch.optim.AdamW(part.parameters(), lr=1e-2) for part in (model[0], model[3]))
for epoch in range(3):
    for batch, ((x, y), (z, _)) in enumerate(zip(left, right)):
        loss = nn.functional.cross_entropy(model(x + z), y)
        model.zero_grad()
        loss.backward()
        first.step()
        loss = model(z).square().mean()
        loss.backward()
        second.step()
        print(f"epoch {epoch} batch {batch} loss {loss.item().hex()}", flush=True)
"""
)


def test_two_loaders_and_two_optimizers(starter: Starter, tmp_path: Path) -> None:
    Script(starter, tmp_path, PAIRS).check_restarts("epoch 0 batch 8", "epoch 2 batch 5")


TOLD = PLAIN.replace("range(epochs)", "range(int(sys.argv[4]) if sys.argv[3:] else 0, epochs)")


def test_restart_arguments(starter: Starter, tmp_path: Path) -> None:
    script = Script(starter, tmp_path, TOLD, 0, 4)
    script.check_restarts("epoch 0 batch 8", "epoch 2 batch 5", restart_args="--start-epoch {epoch}")
    ignored = Script(starter, tmp_path, PLAIN, 0, 6).start(restart_args="--step {step}")
    assert ignored.code == 1
    assert "--restart-args did not bring the script to epoch 4: it is at 0" in ignored.ours[-1]


REFUSED = {
    "not used regularly": HEAD
    + """
loader, model = DataLoader(Noisy(200), 5), network()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step, (x, y) in enumerate(loader):
    if step % 3 or step % 7 == 0:
        print(f"step {step} loss {train(model, optimizer, x, y).hex()}", flush=True)
""",
    "another thread": HEAD
    + """
import queue, threading
loader, model, batches = DataLoader(Noisy(200), 5), network(), queue.Queue(1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
def read():
    for batch in loader:
        batches.put(batch)
    batches.put(None)
threading.Thread(target=read).start()
while (batch := batches.get()) is not None:
    train(model, optimizer, *batch)
print("step 0 done")
""",
    "before some updates": HEAD
    + """
loader, other, model = DataLoader(Noisy(200), 5), iter(DataLoader(Noisy(100), 5)), network()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step, (x, y) in enumerate(loader):
    if step % 4 == 0:
        train(model, optimizer, *next(other))
    print(f"step {step} loss {train(model, optimizer, x, y).hex()}", flush=True)
""",
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_gone_on_from_is_refused_and_runs_on(why: str, starter: Starter, tmp_path: Path) -> None:
    script = Script(starter, tmp_path, REFUSED[why])
    whole, ended = script.plain(), script.start()
    assert ended.losses == whole.losses and ended.code == 0
    assert sum("--checkpoint is refused" in line and why in line for line in ended.ours) == 1, ended.ours
    assert any("checkpointer = stoker.Checkpointer(" in line for line in ended.lines)


def test_a_script_that_trains_with_another_loader_is_refused_at_once(starter: Starter, tmp_path: Path) -> None:
    script = Script(starter, tmp_path, PLAIN, 0, 3)
    script.start("epoch 1 batch 5")
    (tmp_path / "script.py").write_text(PLAIN.replace("Noisy(60)", "Noisy(90)"))
    ended = script.start()
    assert ended.code == 1 and not ended.losses
    assert "trains with a loader over Noisy with 18 batches, which its checkpoint does not know" in ended.lines[-1]


PASSED = (
    HEAD
    + """
import json, os
model = network()
loader, valid = DataLoader(Noisy(60), 5, shuffle=True), DataLoader(Noisy(100), 5)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.save({"loss": "none"}, "best.pt")
log = open("log.csv", "w")
best, names = float("inf"), ["a", "b", "c", "d"]
for epoch in names:
    for batch, (x, y) in enumerate(loader):
        print(f"epoch {epoch} batch {batch} loss {train(model, optimizer, x, y).hex()}", flush=True)
    loss = validate(model, valid)
    print(f"epoch {epoch} validation {loss.hex()}", flush=True)
    log.write(f"{epoch},{loss.hex()}\\n")
    log.flush()
    if loss < best:
        best = loss
        torch.save({"loss": loss.hex()}, "best.pt")
    with open(f"last-{epoch}.json.new", "w") as file:
        json.dump({"loss": loss.hex()}, file)
    os.replace(f"last-{epoch}.json.new", "last.json")
    os.makedirs(f"epoch-{epoch}", exist_ok=True)
    print(f"epoch {epoch} saved", flush=True)
"""
)


def files_of(folder: Path) -> dict[str, str]:
    texts = {path.name: path.read_text() for path in folder.iterdir() if path.suffix in (".csv", ".json", ".new")}
    folders = {path.name: "" for path in folder.iterdir() if path.is_dir() and path.name.startswith("epoch-")}
    return {**texts, **folders, "best.pt": str(torch.load(folder / "best.pt", weights_only=True)["loss"])}


def test_files_are_put_back_when_epochs_are_passed_even_after_a_crash(starter: Starter, tmp_path: Path) -> None:
    """The loop over names cannot be entered in the middle, so epochs that are over end after one batch each."""
    script = Script(starter, tmp_path, PASSED)
    whole = script.plain().losses
    script.start("epoch c batch 5")
    before = files_of(tmp_path)
    assert before["log.csv"].count("\n") == 2 and "epoch-b" in before
    killed = script.start("epoch b saved")  # while it is passed: its files are of a model that was hardly trained
    assert killed.losses[0].startswith("epoch a batch 0") and killed.losses[1].startswith("epoch a validation")
    assert files_of(tmp_path) != before
    ended = script.start("epoch c batch 11")
    assert any("files that an interrupted restart had changed were put back" in line for line in ended.ours)
    assert ended.since_restored == whole[whole.index(ended.since_restored[0]) :][: len(ended.since_restored)]
    assert files_of(tmp_path) == before
    last = script.start()
    assert last.code == 0
    assert last.since_restored == whole[-len(last.since_restored) :]
    files, theirs = files_of(tmp_path), files_of(tmp_path / "plain")
    best = files.pop("best.pt")  # the script's own variable begins anew, so the best of the epochs since then
    assert any(best in line for line in whole)
    assert files == {name: text for name, text in theirs.items() if name != "best.pt"}
    assert not (script.checkpoints / "passing").exists()


def test_a_script_that_ends_before_it_is_where_it_was_has_failed(starter: Starter, tmp_path: Path) -> None:
    script = Script(starter, tmp_path, PASSED)
    script.start("epoch d batch 5")
    before = files_of(tmp_path)
    (tmp_path / "script.py").write_text(PASSED.replace('["a", "b", "c", "d"]', '["a", "b"]'))
    ended = script.start()
    assert ended.code == 1
    assert "nothing was restored" in ended.ours[-1]
    assert files_of(tmp_path) == before


FOLDS = (
    HEAD
    + """
for fold in range(3):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    model[0].requires_grad_(False)
    for epoch in range(3):
        loader = DataLoader(Noisy(60), 5, shuffle=True)
        if fold == 0 and epoch == 1:
            model[0].requires_grad_(True)
        if epoch == 0:
            warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
        for batch, (x, y) in enumerate(loader):
            print(f"epoch {fold}.{epoch} batch {batch} loss {train(model, optimizer, x, y).hex()}", flush=True)
            if epoch == 0:
                warm_up.step()
        warm_up = None
        schedule.step()
"""
)


def test_models_schedulers_and_loaders_that_come_and_go(starter: Starter, tmp_path: Path) -> None:
    Script(starter, tmp_path, FOLDS).check_restarts("epoch 0.2 batch 6", "epoch 1.0 batch 8", "epoch 1.1 batch 5")


LIGHTNING = (
    HEAD
    + """
import lightning.pytorch as lightning

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = network()
    def training_step(self, batch, number):
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        print(f"epoch {self.current_epoch} step {self.global_step} loss {loss.item().hex()}", flush=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", **quiet)
trainer.fit(Module(), DataLoader(Noisy(60), 5, shuffle=True, num_workers=1))
"""
)

TRAINER = (
    HEAD
    + """
import transformers

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = network()
    def forward(self, x, labels):
        loss = nn.functional.cross_entropy(self.model(x), labels)
        if self.training:
            print(f"epoch {trainer.state.epoch} loss {loss.item().hex()}", flush=True)
        return {"loss": loss}

def collate(samples):
    return {"x": torch.stack([x for x, _ in samples]), "labels": torch.tensor([y for _, y in samples])}

options = transformers.TrainingArguments(
    "out", per_device_train_batch_size=5, num_train_epochs=3, save_strategy="no", report_to=[], use_cpu=True,
    gradient_accumulation_steps=2, disable_tqdm=True, logging_strategy="no", dataloader_num_workers=1,
)
trainer = transformers.Trainer(Model(), options, train_dataset=Noisy(60), data_collator=collate)
trainer.train()
"""
)


@pytest.mark.parametrize(("text", "moment"), [(LIGHTNING, "epoch 1 step 17"), (TRAINER, "epoch 1.3")])
def test_frameworks_go_on_by_their_own_callbacks(text: str, moment: str, starter: Starter, tmp_path: Path) -> None:
    script = Script(starter, tmp_path, text)
    ended = script.check_restarts(moment)
    assert not any(line.startswith("epoch 0.0") for line in ended.lines)
    assert "is finished" in script.start().lines[0]
