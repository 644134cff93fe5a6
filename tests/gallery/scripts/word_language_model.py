"""In the manner of PyTorch's word language model: a text cut into columns, truncated backpropagation, and no DataLoader."""

import argparse
import time

import torch
from torch import nn

BPTT = 10


class RNNModel(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.encoder = nn.Embedding(words, 16)
        self.rnn = nn.LSTM(16, 16)
        self.decoder = nn.Linear(16, words)

    def forward(self, x, hidden):
        output, hidden = self.rnn(self.encoder(x), hidden)
        return self.decoder(output).flatten(0, 1), hidden


def batchify(data, size):
    return data[: data.size(0) // size * size].view(size, -1).t().contiguous()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1111)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    words = open(f"{args.data}/text.txt").read().split()
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    data = batchify(torch.tensor([numbers[word] for word in words]), 8)
    model = RNNModel(len(numbers))
    criterion = nn.CrossEntropyLoss()
    lr, best = 20.0, None
    for epoch in range(args.epochs):
        hidden = tuple(torch.zeros(1, 8, 16) for _ in range(2))
        for batch, i in enumerate(range(0, data.size(0) - 1, BPTT)):
            source = data[i : i + min(BPTT, len(data) - 1 - i)]
            target = data[i + 1 : i + 1 + len(source)].flatten()
            model.zero_grad()
            output, hidden = model(source, tuple(part.detach() for part in hidden))
            loss = criterion(output, target)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-lr)
            time.sleep(0.004)
            print(f"epoch {epoch} batch {batch} loss {loss.item().hex()}", flush=True)
        if best is None or loss.item() < best:
            best = loss.item()
            torch.save(model.state_dict(), f"{args.out}/model.pt")
        else:
            lr /= 4


if __name__ == "__main__":
    main()
