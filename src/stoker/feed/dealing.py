"""A state that was saved with another number of workers: dealt among those that there are, or refused."""

from typing import Any

from stoker.feed.resuming import check_form, check_workers
from stoker.pool.huggingface import is_huggingfaces
from stoker.pool.shards import dealt


def fitted(state: dict[str, Any], loader: Any) -> dict[str, Any]:
    """A loader's state as one for the number of workers that it has."""
    check_form(state)
    part, is_fresh = state.get("streams"), not state.get("begun", state.get("_num_yielded"))
    if part is None or "states" not in part or part["workers"] == loader.num_workers:
        return state
    if not is_huggingfaces(loader.dataset):
        check_workers(part, loader.num_workers, is_fresh=is_fresh)
    if is_fresh:  # every epoch of theirs is whole
        return {name: value for name, value in state.items() if name != "streams"}
    batch = 1 if loader.batch_size is None else loader.batch_size
    shards = loader.dataset.num_shards
    states = dealt(part["states"], part["workers"], loader.num_workers, batch=batch, shards=shards)
    return {**state, "streams": {**part, "workers": loader.num_workers, "next_worker": 0, "states": states}}
