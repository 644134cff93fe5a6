"""What a notebook shows of a loader: what it is, and what it has done so far."""

from typing import Any

from stoker.meter import LoaderStats
from stoker.notebook import card
from stoker.order import length_of


def card_of(loader: Any, stats: LoaderStats) -> str:
    """HTML for `_repr_html_`. Nothing is started or measured for it."""
    samples, batches = length_of(loader.dataset), length_of(loader)
    workers = (
        f"{loader.num_workers} {loader.workers}" if loader.num_workers else "none: the loop prepares its batches itself"
    )
    rows = {
        "dataset": type(loader.dataset).__name__ + (f", {samples:,} samples" if samples is not None else ""),
        "batches": ("of unknown number" if batches is None else f"{batches:,}")
        + (f", of {loader.batch_size:,} samples each" if loader.batch_size else ""),
        "workers": workers,
    }
    rows |= {name: str(getattr(loader, name)) for name in ("seed", "cache", "group") if getattr(loader, name) is not None}
    if stats.batches:
        rows["so far"] = f"{stats.batches:,} batches, {stats.samples:,} samples"
        rows["the loop waited"] = (
            f"{stats.wait_s:.3g} s, {stats.first_batch_s:.3g} s of it for the latest epoch's first batch"
        )
    if stats.hits + stats.misses:
        rows["from the cache"] = f"{stats.hits / (stats.hits + stats.misses):.0%} of reads"
    return card(f"stoker.{type(loader).__name__}", rows)
