"""A training with Hugging Face's Trainer that may be killed at any moment: start it again, and it goes on.

python examples/transformers_checkpoint.py --directory checkpoints --steps 1000 --losses losses.txt
"""

import argparse
import hashlib
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.data import Dataset

import stoker
from stoker.torch.transformers import StokerCheckpointCallback


class Sentences(Dataset[dict[str, torch.Tensor]]):
    def __init__(self) -> None:
        self.words = torch.randint(0, 50, (330, 12), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[index], "labels": self.words[index]}


class Trainer(transformers.Trainer):
    def get_train_dataloader(self) -> Any:
        assert isinstance(self.train_dataset, Dataset)
        return stoker.DataLoader(self.train_dataset, batch_size=self.args.train_batch_size, shuffle=True, seed=7)


class Losses(transformers.TrainerCallback):
    """Writes what is logged to a file."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("a", buffering=1)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            print(state.global_step, logs["loss"], file=self.file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", default="checkpoints")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--losses", type=Path, default=Path("losses.txt"))
    parser.add_argument("--every", type=int, help="steps between checkpoints; otherwise as many as cost 5 percent")
    options = parser.parse_args()

    transformers.set_seed(0)
    config = transformers.GPT2Config(vocab_size=50, n_positions=12, n_embd=16, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    arguments = transformers.TrainingArguments(
        output_dir=str(options.losses.parent),
        max_steps=options.steps,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model, arguments, train_dataset=Sentences(), callbacks=[Losses(options.losses)])
    trainer.add_callback(StokerCheckpointCallback(options.directory, trainer, every=options.every))
    trainer.train()
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    print("weights", digest.hexdigest())


if __name__ == "__main__":
    main()
