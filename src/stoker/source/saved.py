"""What Hugging Face `datasets` saves in a folder: tables of Arrow, and a note which of them are the dataset."""

import json
import os
from typing import Any

from stoker.errors import ConfigError

_STATE, _SPLITS = HF_NAMES = "state.json", "dataset_dict.json"


def hf_files(folder: str) -> list[str]:
    """The files of a dataset that `datasets` has saved in a folder."""
    state = os.path.join(folder, _STATE)
    if not os.path.exists(state):
        splits = _said(os.path.join(folder, _SPLITS), "splits")["splits"]
        raise ConfigError(f"{folder} has the splits {', '.join(splits)}: give one, as {os.path.join(folder, splits[0])!r}")
    said = _said(state, "_data_files")
    if said.get("_indices_data_files"):
        raise ConfigError(f"{folder} was saved as a selection of rows: save it after `flatten_indices()`")
    if not said["_data_files"]:
        raise ConfigError(f"no rows in {folder}: an empty dataset was saved there")
    return [os.path.join(folder, each["filename"]) for each in said["_data_files"]]


def _said(path: str, name: str) -> dict[str, Any]:
    """What is written in a note, which has something under this name."""
    try:
        with open(path, encoding="utf-8") as file:
            said: dict[str, Any] = json.load(file)
        if said[name] or (name == "_data_files" and said[name] == []):
            return said
    except (OSError, ValueError, LookupError, TypeError):
        pass
    raise ConfigError(
        f"{path} is none that `datasets` writes beside the tables that it saves: rename it if it is your own,"
        " or save the dataset anew"
    )
