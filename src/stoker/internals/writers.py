"""What of torch opens files for writing without python's `open`. torch is not imported here: these wait for it."""

WRITERS = (
    ("torch._C", "PyTorchFileWriter", 0),
    ("torch.jit._script", "RecursiveScriptModule.save", 1),
)
"""The module, the name in it, and which of its arguments is the path. What `torch.save` and `torch.jit.save` overwrite is
kept while a restarted script is on its way."""
