"""A step of training on several ranks, for scripts that are not about it.

DistributedDataParallel and torch's optimizers import torch's compiler: a second of CPU in every rank.
"""

import torch
import torch.distributed


def descend(model: torch.nn.Module, loss: torch.Tensor) -> None:
    """Change the model by the mean of all ranks' gradients."""
    ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if ranks > 1:
                torch.distributed.all_reduce(parameter.grad)
            parameter -= 0.1 / ranks * parameter.grad
