"""In the manner of minGPT: a sampler with replacement, an iterator that is begun again by hand, callbacks, max_iters."""

import argparse
import time
from collections import defaultdict

import torch
from torch import nn
from torch.utils.data import Dataset
from torch.utils.data.dataloader import DataLoader


class CharDataset(Dataset):
    def __init__(self, text, block):
        chars = sorted(set(text))
        self.stoi = {character: number for number, character in enumerate(chars)}
        self.data, self.block = text, block

    def __len__(self):
        return len(self.data) - self.block

    def __getitem__(self, index):
        chunk = self.data[index : index + self.block + 1]
        numbers = torch.tensor([self.stoi[character] for character in chunk])
        time.sleep(0.006)
        return numbers[:-1], numbers[1:]


class GPT(nn.Module):
    def __init__(self, vocabulary, block):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, 16), nn.Embedding(block, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, vocabulary)

    def forward(self, idx, targets):
        x = self.tokens(idx) + self.positions.weight
        x = self.block(x, src_mask=nn.Transformer.generate_square_subsequent_mask(idx.size(1)), is_causal=True)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


class Trainer:
    def __init__(self, model, train_dataset, max_iters):
        self.model, self.train_dataset, self.max_iters = model, train_dataset, max_iters
        self.callbacks = defaultdict(list)
        self.iter_num, self.iter_dt = 0, 0.0

    def add_callback(self, onevent, callback):
        self.callbacks[onevent].append(callback)

    def run(self):
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-4, betas=(0.9, 0.95))
        train_loader = DataLoader(
            self.train_dataset,
            sampler=torch.utils.data.RandomSampler(self.train_dataset, replacement=True, num_samples=int(1e10)),
            shuffle=False,
            pin_memory=True,
            batch_size=8,
            num_workers=2,
        )
        self.model.train()
        iter_time = time.time()
        data_iter = iter(train_loader)
        while True:
            try:
                batch = next(data_iter)
            except StopIteration:
                data_iter = iter(train_loader)
                batch = next(data_iter)
            x, y = batch
            self.loss = self.model(x, y)
            self.model.zero_grad(set_to_none=True)
            self.loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            for callback in self.callbacks["on_batch_end"]:
                callback(self)
            self.iter_num += 1
            self.iter_dt, iter_time = time.time() - iter_time, time.time()
            if self.max_iters is not None and self.iter_num >= self.max_iters:
                break


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--max_iters", type=int, default=60)
    parser.add_argument("--seed", type=int, default=3407)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    dataset = CharDataset(open(f"{args.data}/text.txt").read(), 16)
    trainer = Trainer(GPT(len(dataset.stoi), 16), dataset, args.max_iters)
    trainer.add_callback(
        "on_batch_end",
        lambda trainer: print(f"iteration {trainer.iter_num} loss {trainer.loss.item().hex()}", flush=True),
    )

    def save(trainer):
        if trainer.iter_num % 20 == 19:
            torch.save(trainer.model.state_dict(), f"{args.out}/model.pt")

    trainer.add_callback("on_batch_end", save)
    trainer.run()


if __name__ == "__main__":
    main()
