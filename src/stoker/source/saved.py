"""What Hugging Face `datasets` saves in a folder: tables of Arrow, and a note which of them are the dataset."""

import json
import os

from stoker.errors import ConfigError

_STATE, _SPLITS = HF_NAMES = "state.json", "dataset_dict.json"


def hf_files(folder: str) -> list[str]:
    """The files of a dataset that `datasets` has saved in a folder."""
    state = os.path.join(folder, _STATE)
    if not os.path.exists(state):
        with open(os.path.join(folder, _SPLITS), encoding="utf-8") as file:
            splits = json.load(file)["splits"]
        raise ConfigError(f"{folder} has the splits {', '.join(splits)}: give one, as {os.path.join(folder, splits[0])!r}")
    with open(state, encoding="utf-8") as file:
        said = json.load(file)
    if said.get("_indices_data_files"):
        raise ConfigError(f"{folder} was saved as a selection of rows: save it after `flatten_indices()`")
    return [os.path.join(folder, each["filename"]) for each in said["_data_files"]]
