"""In the manner of nanoGPT: no epochs; the next batch is fetched right after the forward pass; evaluation every so often."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Blocks(Dataset):
    def __init__(self, numbers, block):
        self.numbers, self.block = numbers, block

    def __len__(self):
        return len(self.numbers) // self.block - 1

    def __getitem__(self, index):
        start = index * self.block + int(torch.randint(0, self.block, (1,)))
        time.sleep(0.007)
        return self.numbers[start : start + self.block], self.numbers[start + 1 : start + 1 + self.block]


def endless(loader):
    while True:
        yield from loader


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--max_iters", type=int, default=70)
    parser.add_argument("--eval_interval", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1337)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    text = open(f"{args.data}/text.txt").read()
    vocabulary = sorted(set(text))
    numbers = torch.tensor([vocabulary.index(character) for character in text])
    cut = 16 * 200
    generator = torch.Generator().manual_seed(args.seed)
    train_loader = DataLoader(
        Blocks(numbers[:cut], 16), batch_size=8, shuffle=True, num_workers=2, drop_last=True, generator=generator
    )
    held_out = Blocks(numbers[cut : cut + 16 * 60], 16)
    val_loader = DataLoader(held_out, batch_size=8, shuffle=True, num_workers=1, generator=torch.Generator())
    batches = endless(train_loader)
    model = nn.Sequential(nn.Embedding(len(vocabulary), 16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, len(vocabulary)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    iter_num, best_val_loss = 0, 1e9
    X, Y = next(batches)
    while True:
        if iter_num % args.eval_interval == 0 and iter_num > 0:
            model.eval()
            with torch.no_grad():
                losses = [nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).item() for x, y in val_loader]
            model.train()
            val_loss = sum(losses) / len(losses)
            print(f"iteration {iter_num} validation end loss {val_loss.hex()}", flush=True)
            if val_loss < best_val_loss:
                best_val_loss = val_loss
                torch.save({"iter_num": iter_num, "loss": val_loss, "model": model.state_dict()}, f"{args.out}/ckpt.pt")
        loss = nn.functional.cross_entropy(model(X).flatten(0, 1), Y.flatten())
        X, Y = next(batches)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        time.sleep(0.004)
        print(f"iteration {iter_num} loss {loss.item().hex()}", flush=True)
        iter_num += 1
        if iter_num > args.max_iters:
            break


if __name__ == "__main__":
    main()
