"""The cluster that Lobster was measured on, and the loaders it was compared with, as inputs of `simulate`. Pure.

The paper prints these: 8 hosts of 8 GPUs, batches of 32, and 40 GB of cache in each host. ImageNet-1K has 135 GB, -22K has
1.3 TB. DALI has three reading threads for each GPU. Preparing is fastest with 6 threads, and slightly slower with more.
There are 200 Gb/s between hosts, and 250 GB/s of storage for 24 hosts.

What the paper does not print is chosen here, in one place each, and the answers are ratios: docs/design/threads.md says how
much depends on it. Samples are fewer in proportion, and the cache with them.
"""

from dataclasses import dataclass

from stoker.cache.replay import BY_FREQUENCY
from stoker.decide.loading import Loading, Portfolio, SampleTime, alone
from stoker.decide.simulate import Contender, TrainingCluster

HOSTS, GPUS, BATCH, EPOCHS = 8, 8, 32, 50
DALI_READERS, BEST_PREPARERS = 3, 6

CONTENDERS = (
    Contender("equal split", "lru", peers=False, readers=DALI_READERS),
    Contender("DALI", "keep-first", peers=False, readers=DALI_READERS),
    Contender("NoPFS", BY_FREQUENCY, peers=True, readers=DALI_READERS),
    Contender("Lobster", "reuse-distance", peers=True, readers=None),
    Contender("Lobster, threads only", "keep-first", peers=False, readers=None),
    Contender("Lobster, eviction only", "reuse-distance", peers=False, readers=DALI_READERS),
)
"""Policies are those whose hits fit the printed ones. The two ablations have no peers: they were measured on one host."""

_TRAIN_S = 0.05
"""Not printed. All other times are in proportion to it, so that no ratio depends on it."""
_WORKERS = DALI_READERS + BEST_PREPARERS
"""For each GPU. Not printed: the smallest number at which DALI's readers leave enough to prepare best."""
_PREPARING = 0.2
"""Of the training time, at its best. Not printed: preparing alone was never seen to be the bottleneck."""
_PAST_BEST = 0.03
"""Each thread beyond the best number makes preparing so much slower ("slightly")."""
_STORAGE = 0.122
"""A thread's time to read a sample from storage, as a part of the training time. The one number that is fitted: with it
61 % of DALI's iterations on ImageNet-1K are imbalanced, where 65 % are printed; the next step of the stairs is 74 %."""
_PEER = (200 / 8) / (250 / 24)
"""A sample comes so many times as fast from a peer as from storage: a host's network against its part of the storage."""
_HERE = 100.0
"""The same from the host's own memory: "orders of magnitude"."""
_CROWD = 16
"""More readers of one queue than this get no more. Not printed; few runs come near it."""


@dataclass(frozen=True, slots=True)
class PublishedDataset:
    """A printed dataset."""

    name: str
    samples: int
    bytes: float


IMAGENET_1K = PublishedDataset("ImageNet-1K", 1_281_167, 135e9)
IMAGENET_22K = PublishedDataset("ImageNet-22K", 14_197_103, 1.3e12)
_CACHE_BYTES = 40e9


def cluster(dataset: PublishedDataset, samples: int) -> TrainingCluster:
    """The published cluster, with a dataset of so many samples in place of all, and a cache for the same part of it."""
    most = GPUS * _WORKERS
    read_s = _STORAGE * _TRAIN_S * (dataset.bytes / dataset.samples) / (IMAGENET_1K.bytes / IMAGENET_1K.samples)
    return TrainingCluster(
        hosts=HOSTS,
        gpus=GPUS,
        samples=samples,
        cached=round(samples * _CACHE_BYTES / dataset.bytes),
        batch=BATCH,
        train_s=_TRAIN_S,
        workers=most,
        loading=Loading(_readers(read_s / _HERE, most), _readers(read_s, most), _readers(read_s / _PEER, most)),
        prepare=_preparers(most),
        sample_bytes=dataset.bytes / dataset.samples,
    )


def _readers(alone_s: float, most: int) -> Portfolio:
    return alone(SampleTime({count: alone_s / min(count, _CROWD) for count in range(1, most + 1)}))


def _preparers(most: int) -> SampleTime:
    """Those of all GPUs of a host together: the best number is six for each."""
    best = BEST_PREPARERS * GPUS
    best_s = _PREPARING * _TRAIN_S / (BATCH * GPUS)
    slower = {count: best_s * (1 + _PAST_BEST * (count - best) / GPUS) for count in range(best + 1, most + 1)}
    return SampleTime({count: best_s * best / count for count in range(1, best + 1)} | slower)
