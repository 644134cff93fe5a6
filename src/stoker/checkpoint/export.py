"""A checkpoint as a file that other programs read."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from stoker.checkpoint.files import Manifest
from stoker.checkpoint.snapshot import state_of
from stoker.errors import CheckpointError
from stoker.extras import EXPORT


def as_torch_file(path: Path, manifest: Manifest, contents: list[bytearray], part: str | None) -> None:
    """For `torch.load(path, weights_only=True)`: one part's state, or all by name, with the step."""
    states, _ = state_of(manifest.document, contents)
    state = states[part] if part is not None else {**states, "step": manifest.step}
    with _whole_or_not_at_all(path), path.open("xb") as file:  # given a path, torch does not say why it cannot write
        torch.save(state, file)


def as_safetensors(path: Path, manifest: Manifest, contents: list[bytearray], part: str | None) -> None:
    """All tensors of one part, or of all parts, by their names with dots between. What is not a tensor stays behind."""
    EXPORT.check()
    from safetensors.torch import save_file

    states, _ = state_of(manifest.document, contents)
    tensors: dict[str, torch.Tensor] = {}
    _collect(states[part] if part is not None else states, "", tensors)
    seen: set[int] = set()
    for name, tensor in tensors.items():  # the format knows no two names for one tensor
        tensors[name] = tensor.clone().contiguous() if tensor.data_ptr() in seen else tensor.contiguous()
        seen.add(tensor.data_ptr())
    with _whole_or_not_at_all(path):
        save_file(tensors, path, metadata={"step": str(manifest.step), "format": "pt"})


@contextlib.contextmanager
def _whole_or_not_at_all(path: Path) -> Iterator[None]:
    """Remove a file that cannot be written to its end. Raises CheckpointError, which says why."""
    try:
        yield
    except Exception as error:
        path.unlink(missing_ok=True)
        why = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"{path} cannot be written: {why}") from error


def _collect(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        tensors[name] = value
    elif isinstance(value, dict):
        for key, part in value.items():
            _collect(part, f"{name}.{key}" if name else str(key), tensors)
    elif isinstance(value, (list, tuple)):
        for number, part in enumerate(value):
            _collect(part, f"{name}.{number}" if name else str(number), tensors)
