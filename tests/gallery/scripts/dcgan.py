"""In the manner of PyTorch's DCGAN example: two networks, two optimizers, two updates for each batch, samples on disk."""

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, root):
        self.paths = sorted(Path(root).rglob("*.png"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = Image.open(self.paths[index]).convert("L").resize((8, 8))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        time.sleep(0.0002)
        return torch.from_numpy(np.array(image)).float().div(127.5).sub(1).flatten(), 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--niter", type=int, default=2)
    parser.add_argument("--manualSeed", type=int, default=5)
    opt = parser.parse_args()
    random.seed(opt.manualSeed)
    torch.manual_seed(opt.manualSeed)
    dataloader = DataLoader(Pictures(f"{opt.data}/pictures/train"), batch_size=8, shuffle=True, num_workers=2)
    netG = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 64), nn.Tanh())
    netD = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1), nn.Sigmoid())
    criterion = nn.BCELoss()
    fixed_noise = torch.randn(4, 10)
    optimizerD = optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
    optimizerG = optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))
    for epoch in range(opt.niter):
        for i, data in enumerate(dataloader, 0):
            netD.zero_grad()
            real = data[0]
            label = torch.full((real.size(0),), 1.0)
            errD_real = criterion(netD(real).view(-1), label)
            errD_real.backward()
            fake = netG(torch.randn(real.size(0), 10))
            label.fill_(0.0)
            errD_fake = criterion(netD(fake.detach()).view(-1), label)
            errD_fake.backward()
            optimizerD.step()
            netG.zero_grad()
            label.fill_(1.0)
            errG = criterion(netD(fake).view(-1), label)
            errG.backward()
            optimizerG.step()
            time.sleep(0.03)
            print(f"epoch {epoch} batch {i} loss {(errD_real + errD_fake).item().hex()} {errG.item().hex()}", flush=True)
            if i % 10 == 0:
                fake = netG(fixed_noise).detach().view(4, 8, 8).add(1).mul(127.5).to(torch.uint8)
                Image.fromarray(torch.cat(list(fake)).numpy()).save(f"{opt.out}/fake_samples_epoch_{epoch:03d}.png")
        torch.save(netG.state_dict(), f"{opt.out}/netG_epoch_{epoch}.pth")
        torch.save(netD.state_dict(), f"{opt.out}/netD_epoch_{epoch}.pth")


if __name__ == "__main__":
    main()
