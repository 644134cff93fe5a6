"""In the manner of the well-known U-Net: dict batches, a progress bar over samples, validation in the middle of an epoch."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, random_split
from tqdm import tqdm


class BasicDataset(Dataset):
    def __init__(self, root):
        pictures = {path.stem: path for path in Path(root, "pictures/train").rglob("*.png")}
        self.ids = sorted(pictures)
        self.pictures, self.masks = pictures, Path(root, "masks")

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        name = self.ids[index]
        image = np.asarray(Image.open(self.pictures[name]).convert("L")) / 255.0
        mask = np.asarray(Image.open(self.masks / f"{name}.png"))
        time.sleep(0.007)
        return {"image": torch.as_tensor(image[None]).float().contiguous(), "mask": torch.as_tensor(mask.copy()).long()}


def evaluate(net, dataloader, epoch, step):
    net.eval()
    score = 0.0
    with torch.no_grad():
        for number, batch in enumerate(tqdm(dataloader, total=len(dataloader), leave=False, disable=True)):
            score += nn.functional.cross_entropy(net(batch["image"]), batch["mask"]).item()
            print(f"epoch {epoch} validation {step}/{number} loss {score.hex()}", flush=True)
    net.train()
    return score / max(len(dataloader), 1)


def train_model(model, dataset, out, epochs=3, batch_size=8, val_percent=0.1, seed=0):
    n_val = int(len(dataset) * val_percent)
    n_train = len(dataset) - n_val
    train_set, val_set = random_split(dataset, [n_train, n_val], generator=torch.Generator().manual_seed(seed))
    loader_args = {"batch_size": batch_size, "num_workers": 2, "pin_memory": True}
    generator = torch.Generator().manual_seed(seed)
    train_loader = DataLoader(train_set, shuffle=True, generator=generator, **loader_args)
    val_loader = DataLoader(val_set, shuffle=False, drop_last=True, generator=torch.Generator(), **loader_args)
    optimizer = optim.RMSprop(model.parameters(), lr=1e-3, weight_decay=1e-8, momentum=0.9, foreach=True)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, "min", patience=20)
    grad_scaler = torch.amp.GradScaler("cpu", enabled=False)
    global_step = 0
    for epoch in range(1, epochs + 1):
        model.train()
        with tqdm(total=n_train, desc=f"Epoch {epoch}/{epochs}", unit="img", disable=True) as pbar:
            for batch in train_loader:
                images, true_masks = batch["image"], batch["mask"]
                loss = nn.functional.cross_entropy(model(images), true_masks)
                optimizer.zero_grad(set_to_none=True)
                grad_scaler.scale(loss).backward()
                grad_scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                grad_scaler.step(optimizer)
                grad_scaler.update()
                pbar.update(images.shape[0])
                global_step += 1
                time.sleep(0.004)
                print(f"epoch {epoch} batch {global_step} loss {loss.item().hex()}", flush=True)
                pbar.set_postfix(**{"loss (batch)": loss.item()})
                division_step = n_train // (2 * batch_size)
                if division_step > 0 and global_step % division_step == 0:
                    scheduler.step(evaluate(model, val_loader, epoch, global_step))
        state_dict = model.state_dict()
        torch.save(state_dict, str(Path(out) / f"checkpoint_epoch{epoch % 4}.pth"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    unet = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    train_model(unet, BasicDataset(args.data), args.out, epochs=args.epochs, seed=args.seed)
