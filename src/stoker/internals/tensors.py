"""Private names of torch's tensors. Apart from those of data loading: a torch that loads otherwise can save checkpoints."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

is_made_of_tensors: Callable[[Any], bool] = is_traceable_wrapper_subclass
"""DTensors and their like have no memory of their own to copy."""
copy_all: Callable[..., None] = torch._foreach_copy_
"""Copies a whole model within a device in a few kernels, where one `copy_` for each tensor takes as many."""
version_of: Callable[[torch.Tensor], int] = attrgetter("_version")
"""A number that rises with each change in place: how a change during a copy, or an update, is noticed."""
storage_of: Callable[[Any], int] = attrgetter("_cdata")
"""The identity of a storage: tensors that share memory still do after a batch has travelled."""
make_wrapper: Callable[..., Any] = torch.Tensor._make_wrapper_subclass
"""Makes a tensor that has a shape and a type, and no memory."""
without_subclasses: Callable[[], Any] = torch._C.DisableTorchFunctionSubclass
"""Within this, what a tensor of ours is asked for is answered by torch itself."""
without_dispatch: Callable[[], Any] = torch._C._DisableTorchDispatch
"""Within this, what is done with the memory of a tensor of ours is done by torch itself."""
