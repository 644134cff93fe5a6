"""In the manner of the Accelerate examples for text: BatchEncoding batches, `labels` popped, accumulation, max_train_steps."""

import argparse
import math
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm
from transformers import BatchEncoding, get_scheduler


class Sentences(Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = [
            torch.randint(1, 50, (int(length),), generator=generator)
            for length in torch.randint(4, 12, (count,), generator=generator)
        ]

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        time.sleep(0.01)
        tokens = self.tokens[index].clone()
        tokens[torch.rand(len(tokens)) < 0.1] = 0
        return {"input_ids": tokens, "labels": int(self.tokens[index][0]) % 2}


def pad(features):
    longest = max(len(feature["input_ids"]) for feature in features)
    ids = torch.stack([torch.nn.functional.pad(f["input_ids"], (0, longest - len(f["input_ids"]))) for f in features])
    labels = torch.tensor([feature["labels"] for feature in features])
    return BatchEncoding({"input_ids": ids, "attention_mask": ids.ne(0), "labels": labels})


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 16)
        self.head = torch.nn.Linear(16, 2)

    def forward(self, input_ids, attention_mask):
        return self.head(self.embedding(input_ids).mul(attention_mask.unsqueeze(-1)).mean(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--out", default=".")
    parser.add_argument("--num_train_epochs", type=int, default=3)
    parser.add_argument("--max_train_steps", type=int)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.gradient_accumulation_steps)
    set_seed(args.seed)
    train_dataloader = DataLoader(Sentences(200, 0), shuffle=True, collate_fn=pad, batch_size=8, num_workers=2)
    eval_dataloader = DataLoader(Sentences(48, 1), collate_fn=pad, batch_size=16)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    updates_per_epoch = math.ceil(len(train_dataloader) / args.gradient_accumulation_steps)
    if args.max_train_steps is None:
        args.max_train_steps = args.num_train_epochs * updates_per_epoch
    lr_scheduler = get_scheduler(
        name="linear", optimizer=optimizer, num_warmup_steps=5, num_training_steps=max(100, args.max_train_steps)
    )
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    args.num_train_epochs = math.ceil(
        args.max_train_steps / math.ceil(len(train_dataloader) / args.gradient_accumulation_steps)
    )
    progress_bar = tqdm(range(args.max_train_steps), disable=True)
    completed_steps = 0
    for epoch in range(args.num_train_epochs):
        model.train()
        for step, batch in enumerate(train_dataloader):
            with accelerator.accumulate(model):
                labels = batch.pop("labels")
                loss = torch.nn.functional.cross_entropy(model(**batch), labels)
                accelerator.backward(loss)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                progress_bar.update(1)
                completed_steps += 1
            time.sleep(0.005)
            print(f"epoch {epoch} batch {step} loss {loss.item().hex()}", flush=True)
            if completed_steps >= args.max_train_steps:
                break
        model.eval()
        for step, batch in enumerate(eval_dataloader):
            labels = batch.pop("labels")
            with torch.no_grad():
                loss = torch.nn.functional.cross_entropy(model(**batch), labels)
            print(f"epoch {epoch} validation {step} loss {accelerator.gather(loss).item().hex()}", flush=True)


if __name__ == "__main__":
    main()
