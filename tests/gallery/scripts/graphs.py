"""In the manner of PyG's examples: a loader class of its own, and batches that are objects with `to()` and `num_graphs`."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import Dataset


class Data:
    def __init__(self, x, edge_index, y):
        self.x, self.edge_index, self.y = x, edge_index, y


class Batch(Data):
    @classmethod
    def from_data_list(cls, graphs):
        batch = cls(torch.cat([graph.x for graph in graphs]), None, torch.tensor([graph.y for graph in graphs]))
        starts = torch.tensor([0, *(len(graph.x) for graph in graphs)]).cumsum(0)
        batch.edge_index = torch.cat([g.edge_index + start for g, start in zip(graphs, starts[:-1], strict=True)], dim=1)
        batch.batch = torch.repeat_interleave(torch.arange(len(graphs)), starts.diff())
        return batch

    @property
    def num_graphs(self):
        return len(self.y)

    def to(self, device):
        for name, value in vars(self).items():
            setattr(self, name, value.to(device))
        return self


class Collater:
    def __call__(self, graphs):
        return Batch.from_data_list(graphs)


class GraphLoader(torch.utils.data.DataLoader):
    def __init__(self, dataset, batch_size=1, shuffle=False, **kwargs):
        kwargs.pop("collate_fn", None)
        super().__init__(dataset, batch_size, shuffle, collate_fn=Collater(), **kwargs)


class Molecules(Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.sizes = torch.randint(4, 10, (count,), generator=generator)

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        time.sleep(0.007)
        size = int(self.sizes[index])
        return Data(torch.randn(size, 8) + index % 2, torch.randint(0, size, (2, 2 * size)), index % 2)


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, data):
        source, target = data.edge_index
        x = torch.relu(self.first(data.x))
        x = x.index_add(0, target, x[source])
        pooled = torch.zeros(data.num_graphs, 16).index_add(0, data.batch, x)
        return self.second(pooled)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--out", default=".")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=12345)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_loader = GraphLoader(Molecules(200, 0), batch_size=8, shuffle=True, num_workers=2)
    test_loader = GraphLoader(Molecules(40, 1), batch_size=8)
    model = GCN()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def train(epoch):
        model.train()
        for step, data in enumerate(train_loader):
            data = data.to("cpu")
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(data), data.y)
            loss.backward()
            optimizer.step()
            time.sleep(0.004)
            print(f"epoch {epoch} batch {step} loss {loss.item().hex()}", flush=True)

    def test(epoch):
        model.eval()
        for step, data in enumerate(test_loader):
            data = data.to("cpu")
            loss = nn.functional.cross_entropy(model(data), data.y)
            print(f"epoch {epoch} validation {step} loss {loss.item().hex()}", flush=True)

    for epoch in range(args.epochs):
        train(epoch)
        test(epoch)


if __name__ == "__main__":
    main()
