"""Train ResNet-18 on JPEG files in the manner of torchvision's reference: a preset of its own, mixed precision, workers.

python gpu_prep_script.py FOLDER [--synthetic] [--jitter]

Prints images per second in the second half of an epoch, and seconds of processor time per image in the middle of it.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torchvision
from torchvision import transforms
from torchvision.transforms.functional import InterpolationMode


class ClassificationPresetTrain:
    """A preset as scripts define them."""

    def __init__(self, crop: int, *, jitter: bool) -> None:
        parts: list[Any] = [transforms.RandomResizedCrop(crop, interpolation=InterpolationMode.BILINEAR)]
        parts += [transforms.RandomHorizontalFlip(0.5)]
        parts += [transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)] if jitter else []
        parts += [transforms.PILToTensor(), transforms.ConvertImageDtype(torch.float)]
        parts += [transforms.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))]
        self.transforms = transforms.Compose(parts)

    def __call__(self, picture: Any) -> Any:
        return self.transforms(picture)


def processor_s() -> float:
    """Processor time of this process and of those that it has started."""
    pids, total = [os.getpid()], 0
    while pids:
        pid = pids.pop()
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
            for thread in Path(f"/proc/{pid}/task").iterdir():
                pids += map(int, (thread / "children").read_text().split())
        except OSError:
            continue
    return total / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--synthetic", action="store_true")
    parser.add_argument("--jitter", action="store_true")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    dataset = torchvision.datasets.ImageFolder(options.folder, ClassificationPresetTrain(224, jitter=options.jitter))
    dataset.samples *= options.times
    loader: Any = torch.utils.data.DataLoader(
        dataset, batch_size=options.batch, shuffle=True, num_workers=options.workers, pin_memory=True, drop_last=True
    )
    model = torchvision.models.resnet18(num_classes=len(dataset.classes)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    steps = len(loader)
    if options.synthetic:
        batch = torch.randn(options.batch, 3, 224, 224, device="cuda"), torch.zeros(options.batch, dtype=torch.int64).cuda()
        loader = (batch for _ in range(steps))
    began, busy_s, processor, count = 0.0, 0.0, 0.0, 0
    for number, (images, labels) in enumerate(loader):
        if number == steps // 5:
            processor = processor_s()
        if number == steps * 4 // 5:  # workers end before the loop does, and their time is not seen any more
            busy_s = (processor_s() - processor) / (number - steps // 5) / options.batch
        if number == steps // 2:
            torch.cuda.synchronize()
            began, count = time.perf_counter(), 0
        images, labels = images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)
        with torch.amp.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        loss.item()  # as the reference, which logs it
        count += len(labels)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    print(json.dumps({"images_per_s": count / seconds, "processor_s": busy_s}), flush=True)


if __name__ == "__main__":
    main()
