"""A stream: an IterableDataset that its workers divide among themselves, with a buffer in which it is shuffled."""

import argparse
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Lines(IterableDataset):
    def __init__(self, path, buffer):
        self.path, self.buffer = path, buffer

    def words(self):
        info = get_worker_info()
        number, workers = (0, 1) if info is None else (info.id, info.num_workers)
        with open(self.path) as file:
            yield from file.read().split()[number::workers][:120]

    def __iter__(self):
        kept = []
        for word in self.words():
            time.sleep(0.007)
            if len(kept) < self.buffer:
                kept.append(word)
                continue
            place = random.randrange(self.buffer)
            kept[place], word = word, kept[place]
            yield self.prepared(word)
        random.shuffle(kept)
        yield from map(self.prepared, kept)

    def prepared(self, word):
        return torch.tensor([ord(character) for character in word.ljust(8)[:8]]), int(word[4:]) % 2


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed), random.seed(args.seed)
    loader = DataLoader(Lines(f"{args.data}/text.txt", 16), batch_size=8, num_workers=2)
    model = nn.Sequential(nn.Embedding(128, 8), nn.Flatten(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        for number, (tokens, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(tokens), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.004)
            print(f"epoch {epoch} batch {number} loss {loss.item().hex()}", flush=True)
        print(f"epoch {epoch} done", flush=True)


if __name__ == "__main__":
    main()
