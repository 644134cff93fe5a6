"""In the manner of the transfer-learning tutorial: one loop for the phases 'train' and 'val', the best weights on disk."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn, optim
from torch.optim import lr_scheduler


class ImageFolder(torch.utils.data.Dataset):
    def __init__(self, root, transform):
        self.samples = [(path, path.parent.name == "busy") for path in sorted(Path(root).rglob("*.png"))]
        self.transform = transform

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        return self.transform(np.array(Image.open(path).convert("L"))), int(label)


def augment(image):
    return torch.from_numpy(image[:, :: -1 if torch.rand(1) < 0.5 else 1].copy()).float().div(255).flatten()


def plain(image):
    return torch.from_numpy(image).float().div(255).flatten()


def train_model(model, dataloaders, dataset_sizes, criterion, optimizer, scheduler, num_epochs, best_path):
    torch.save({"loss": 99.0, "model": model.state_dict()}, best_path)
    best = 99.0
    for epoch in range(num_epochs):
        for phase in ["train", "val"]:
            model.train(phase == "train")
            running_loss = 0.0
            for number, (inputs, labels) in enumerate(dataloaders[phase]):
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    loss = criterion(model(inputs), labels)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
                running_loss += loss.item() * inputs.size(0)
                time.sleep(0.03 if phase == "train" else 0.01)
                kind = "batch" if phase == "train" else "validation"
                print(f"epoch {epoch} {kind} {number} loss {loss.item().hex()}", flush=True)
            if phase == "train":
                scheduler.step()
            epoch_loss = running_loss / dataset_sizes[phase]
            if phase == "val":
                print(f"epoch {epoch} validation end loss {epoch_loss.hex()}", flush=True)
                if epoch_loss < best:
                    best = epoch_loss
                    torch.save({"loss": best, "model": model.state_dict()}, best_path)
    model.load_state_dict(torch.load(best_path, weights_only=True)["model"])
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    transforms = {"train": augment, "val": plain}
    image_datasets = {x: ImageFolder(f"{args.data}/pictures/{x}", transforms[x]) for x in ["train", "val"]}
    dataloaders = {
        x: torch.utils.data.DataLoader(image_datasets[x], batch_size=8, shuffle=True, num_workers=2)
        for x in ["train", "val"]
    }
    dataset_sizes = {x: len(image_datasets[x]) for x in ["train", "val"]}
    model = nn.Sequential(nn.Linear(576, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scheduler = lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.1)
    train_model(
        model,
        dataloaders,
        dataset_sizes,
        nn.CrossEntropyLoss(),
        optimizer,
        scheduler,
        args.epochs,
        f"{args.out}/best_model_params.pt",
    )


if __name__ == "__main__":
    main()
