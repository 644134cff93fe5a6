"""What the installed torch offers, for `stoker doctor`."""

import torch

from stoker.measure.host import Finding


def torch_findings() -> list[Finding]:
    """torch's version and the accelerator that it sees."""
    if torch.cuda.is_available():
        names = sorted({torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())})
        accelerator = f"{torch.cuda.device_count()} x {', '.join(names)}"
    else:
        accelerator = "none"
    return [Finding("torch", torch.__version__), Finding("accelerator", accelerator)]
