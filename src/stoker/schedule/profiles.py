"""Profiles of models, as a document: how fast an iteration is, by the CPUs and the memory for each GPU.

    {"cpu_axis": [1, 2, ...], "mem_axis_gb": [20.83, ...],
     "profiles": {"models": {NAME: {"cpus": 12, "mem": 125, "iter_time": 0.6, "tput": [[...], ...]}}, "models-4": {...}}}

`tput` has a row for each number of CPUs, relative to the proportional share, with which an iteration takes `iter_time`
seconds. `cpus` and `mem` are what the model wants. What it reads may be said by `iteration_bytes`, `process_gb` and
`dataset_gb`. A group `models-N` is for servers with N CPUs per GPU, `models` for 3.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.errors import ConfigError
from stoker.schedule.job import Server
from stoker.schedule.matrix import Matrix, Reads

_PLAIN_RATIO = 3


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """One model: the matrix of its rates, and how long an iteration takes with the proportional share."""

    name: str
    matrix: Matrix
    iteration_s: float


def read_profiles(path: Path, servers: Sequence[Server]) -> dict[str, ModelProfile]:
    """The models of that group which is for such servers."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"the profiles {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    groups = _field(document, "profiles", dict, str(path))
    if not groups:
        raise ConfigError(f"{path}: profiles has no group, such as models")
    name = _group(list(groups), sum(server.cpus for server in servers) / sum(server.gpus for server in servers))
    axes = tuple(tuple(_numbers(document, axis, str(path))) for axis in ("cpu_axis", "mem_axis_gb"))
    models = _field(groups, name, dict, f"{path}: profiles")
    return {model: _model(model, models, axes, f"{path}: {name}: {model}") for model in models}


def _group(names: Sequence[str], ratio: float) -> str:
    """The group whose ratio is nearest."""

    def distance(name: str) -> float:
        number = name.rpartition("-")[2]
        return abs((float(number) if number.isdigit() else _PLAIN_RATIO) - ratio)

    return min(names, key=distance)


def _model(model: str, models: Mapping[str, Any], axes: tuple[tuple[float, ...], ...], where: str) -> ModelProfile:
    profile = _field(models, model, dict, where)
    iteration_s, cpus, memory = (_number(profile, name, where) for name in ("iter_time", "cpus", "mem"))
    if iteration_s <= 0 or cpus <= 0 or memory <= 0:
        raise ConfigError(f"{where}: iter_time, cpus and mem must be above 0")
    rows = _field(profile, "tput", list, where)
    rates = []
    for number, row in enumerate(rows):
        at = f"{where}: tput: row {number + 1}"
        if not isinstance(row, list):
            raise ConfigError(f"{at} is not a list of numbers")
        rates.append(tuple(_value(value, f"{at}, column {column + 1}") / iteration_s for column, value in enumerate(row)))
    try:
        return ModelProfile(
            model, Matrix(axes[0], axes[1], tuple(rates), (cpus, memory), _reads(profile, where)), iteration_s
        )
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _reads(profile: Mapping[str, Any], where: str) -> Reads | None:
    if "iteration_bytes" not in profile:
        return None
    return Reads(*(_number(profile, name, where) for name in ("iteration_bytes", "process_gb", "dataset_gb")))


def _field(document: Any, name: str, kind: type, where: str) -> Any:
    if not isinstance(document, dict) or name not in document:
        raise ConfigError(f"{where}: {name} is missing")
    if not isinstance(document[name], kind):
        raise ConfigError(f"{where}: {name} is not a {'list' if kind is list else 'table'}")
    return document[name]


def _numbers(document: Any, name: str, where: str) -> list[float]:
    return [_value(value, f"{where}: {name}") for value in _field(document, name, list, where)]


def _number(profile: Mapping[str, Any], name: str, where: str) -> float:
    if name not in profile:
        raise ConfigError(f"{where}: {name} is missing")
    return _value(profile[name], f"{where}: {name}")


def _value(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{where}: {'there is a hole' if value is None else f'{value!r} is not a number'}")
    return float(value)
