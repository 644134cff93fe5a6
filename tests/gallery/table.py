"""What the gallery's scripts are, and what must be found of each: the planted loader and limit, and the way it restarts.

Every limit is planted with a margin of three: what is to be the limit takes three times as long as all else together.
Every script prints a line with a loss, as hexadecimal digits, for each batch; the losses of a restart are compared by them.
"""

from dataclasses import dataclass

Moment = tuple[str, int]
"""A moment of a run: the line that is the so many-th to match a pattern. `RESTART` is the first line of a restart."""

RESTART: Moment = (r"restored|epoch|iteration", 1)


@dataclass(frozen=True)
class Entry:
    """One script."""

    name: str
    manner: str
    samples: int
    """Of the training dataset, as `profile.json` has it; 0: a stream."""
    limit: str
    batch: int = 8
    workers: int = 2
    hours: tuple[str, ...] = ("--epochs", "1000000")
    """Arguments with which it runs for hours."""
    not_analyzed: str = ""
    """What `analyze` says where there is nothing to find."""
    checkpoint: str = "exact"
    """What `run --checkpoint` must do: "exact", "refused", or either of both ("exact or refused")."""
    moments: tuple[Moment, ...] = (("epoch 0 batch", 8), ("epoch 1 batch", 10), ("epoch 1 (validation|done)", 1))
    checkpoint_options: tuple[str, ...] = ()
    compares: str = "batch|validation|iteration|done"
    """Lines that must be the same after a restart. Those that depend on a variable of the script's own are left out."""
    counts_anew: bool = False
    """It ends after a number of iterations that it counts itself, and counts anew after a restart."""
    best: tuple[str, ...] = ()
    """Files that hold the best model so far and its loss: the loss is one that a run without interruption has, too."""
    rows: tuple[str, ...] = ()
    """Logs with a row for each epoch, which ends with a loss."""
    counted: tuple[str, ...] = ()
    """Files that are written every so many batches of an epoch, as the script counts them: names, or how these begin."""
    code: int = 0
    ranks: int = 1
    is_module: bool = False
    slow_disk: bool = False
    """Where reading is the limit, because the disk is made slow for it; where that is not permitted, the loop is."""


FROM_ONE: tuple[Moment, ...] = (("epoch 1 batch", 8), ("epoch 2 batch", 10), ("epoch 2 validation", 1))
WITH_RESTART: tuple[Moment, ...] = (*Entry.moments[:2], RESTART, Entry.moments[2])

ENTRIES = [
    Entry("mnist", "PyTorch's MNIST example", 240, "prep", moments=FROM_ONE),
    Entry(
        "imagenet",
        "PyTorch's ImageNet example: the best checkpoint is copied",
        240,
        "fetch",
        slow_disk=True,
        best=("checkpoint.pth.tar", "model_best.pth.tar"),
        moments=WITH_RESTART,
        checkpoint_options=("--restart-args", "--start-epoch {epoch}"),
    ),
    Entry(
        "word_language_model",
        "PyTorch's word language model: no DataLoader at all",
        0,
        "",
        not_analyzed="iterated no DataLoader",
        checkpoint="refused",
        moments=(),
    ),
    Entry(
        "dcgan",
        "PyTorch's DCGAN: two optimizers",
        240,
        "gpu",
        hours=("--niter", "1000000"),
        moments=(("epoch 0 batch", 8), ("epoch 1 batch", 3), ("epoch 1 batch", 10)),
        counted=("fake_samples",),
    ),
    Entry("classification", "torchvision's classification reference", 240, "prep"),
    Entry("detection", "torchvision's detection reference: a batch sampler, lists", 240, "prep"),
    Entry("segmentation", "torchvision's segmentation reference: collation that pads", 192, "gpu"),
    Entry(
        "image_models",
        "timm: endless loader, prefetching, scaler, mixup in place",
        240,
        "prep",
        checkpoint="exact or refused",
        best=("model_best.pth.tar",),
        rows=("summary.csv",),
        moments=WITH_RESTART,
    ),
    Entry(
        "hf_trainer",
        "Hugging Face's Trainer",
        160,
        "prep",
        hours=("--num_train_epochs", "1000000"),
        moments=(("epoch 0 batch", 8), ("epoch 1 batch", 10), ("epoch 2 validation", 1)),
    ),
    Entry(
        "glue_no_trainer",
        "Accelerate: BatchEncoding, pop, accumulation",
        200,
        "prep",
        hours=("--num_train_epochs", "1000000"),
    ),
    Entry("lightning_trainer", "Lightning's Trainer", 200, "prep", hours=("--max_epochs", "1000000")),
    Entry("fabric", "Lightning Fabric", 200, "gpu"),
    Entry("graphs", "PyG: batches that are objects, a loader class of its own", 200, "prep"),
    Entry(
        "yolo",
        "YOLOv5: InfiniteDataLoader, progress bar, best.pt",
        240,
        "prep",
        checkpoint="exact or refused",
        best=("last.pt", "best.pt"),
        rows=("results.csv",),
        moments=WITH_RESTART,
    ),
    Entry(
        "unet", "U-Net: dict batches, validation in the middle of an epoch", 216, "prep", moments=FROM_ONE, compares="batch"
    ),
    Entry(
        "mingpt",
        "minGPT: a sampler with replacement, an iterator begun by hand",
        0,
        "prep",
        hours=("--max_iters", "100000000"),
        moments=(("iteration", 8), ("iteration", 12), ("iteration", 9)),
        counts_anew=True,
    ),
    Entry(
        "nanogpt",
        "nanoGPT: endless, the next batch fetched before the update",
        199,
        "prep",
        hours=("--max_iters", "100000000"),
        checkpoint="exact or refused",
        moments=(("iteration", 8), ("validation", 1), ("iteration", 9)),
        compares=r"iteration \d+ loss",
        counts_anew=True,
        best=("ckpt.pt",),
    ),
    Entry("onecycle", "OneCycleLR(steps_per_epoch=len(loader))", 205, "prep"),
    Entry("accumulation", "accumulation until batch_idx + 1 == len(loader)", 224, "prep"),
    Entry(
        "transfer",
        "the transfer-learning tutorial: phases train and val in one loop",
        240,
        "gpu",
        best=("best_model_params.pt",),
        moments=WITH_RESTART,
    ),
    Entry("stream", "an IterableDataset", 0, "prep", checkpoint="exact or refused"),
    Entry("dataclasses_in_place", "dataclass batches that the loop changes in place", 200, "prep"),
    Entry(
        "kfold",
        "cross-validation: one training loader after the other",
        240,
        "prep",
        checkpoint="exact or refused",
        moments=(("fold 0 epoch 0 batch", 8), ("fold 1 epoch 0 batch", 10), ("fold 1 validation", 1)),
    ),
    Entry("sanity_first", "a larger validation set, looked through before the training", 200, "prep"),
    Entry("fresh_loader", "a new loader in every epoch", 200, "prep", checkpoint="exact or refused"),
    Entry("ddp", "two ranks by torchrun", 256, "prep", workers=1, ranks=2),
    Entry(
        "project",
        "`-m project.train`, with a log and a best model of its own",
        200,
        "prep",
        is_module=True,
        best=("last.pt", "best.pt"),
        rows=("log.csv",),
        moments=WITH_RESTART,
    ),
    Entry(
        "failing",
        "a script that ends with a code of its own",
        160,
        "prep",
        code=17,
        hours=("--epochs", "1000000", "--diverge-after", "1000000000"),
        moments=(("epoch 0 batch", 8), ("epoch 1 batch", 4), ("epoch 1 batch", 6)),
    ),
]
BY_NAME = {entry.name: entry for entry in ENTRIES}
