"""Loaders of others, and ours, as `benchmarks/peers.py` compares them: one file for each, run in an environment of its own.

A file has `Loader(name, workload, folder)`, which is iterated once an epoch and gives batches `(samples, numbers)`. One
that can be resumed has `state()` and `resume(state)`; one with its own format has `write(workload, folder, plain)`. All
have two workers, shuffle as their guides advise, and prepare with the same code, but for DALI, which has its own decoders.
"""

PINS: dict[str, list[str]] = {
    "stoker": [],
    "torch": [],
    "torchdata": ["torchdata==0.11.0"],
    "spdl": ["spdl==0.8.0", "spdl_core==0.8.0", "spdl_io==0.8.0"],
    "grain": [
        "grain==0.2.18",
        "absl_py==2.5.1",
        "array_record==0.8.6",
        "etils==1.15.0",
        "importlib_resources==7.1.0",
        "portpicker==1.6.0",
        "zipp==4.1.2",
    ],
    "dali": [
        "nvidia_dali_cuda130==2.4.0",
        "astunparse==1.6.3",
        "gast==0.7.0",
        "libcst==1.9.0",
        "makefun==1.16.0",
        "nvidia_nvimgcodec_cu13==0.9.0.20",
        "nvtx==0.2.16",
        "optree==0.20.0",
        "six==1.17.0",
        "wheel==0.48.0",
    ],
    "webdataset": ["webdataset==1.0.2", "braceexpand==0.1.7"],
    "litdata": [
        "litdata==0.2.76",
        "boto3==1.44.3",
        "botocore==1.44.3",
        "jmespath==1.1.0",
        "obstore==0.12.1",
        "s3transfer==0.19.3",
        "tifffile==2026.3.3",
    ],
    "streaming": [
        "mosaicml_streaming==0.13.0",
        "boto3==1.44.3",
        "botocore==1.44.3",
        "brotli==1.2.1",
        "catalogue==2.0.10",
        "cramjam==2.14.0",
        "jmespath==1.1.0",
        "python_snappy==0.7.3",
        "s3transfer==0.19.3",
        "zstd==1.5.7.2",
    ],
    "datasets": ["datasets==5.2.0", "dill==0.4.1", "multiprocess==0.70.19"],
}
"""What is installed for each, without what it would pull in: torch and the rest come from the environment of the caller."""

TITLES = {
    "stoker": "Stoker",
    "torch": "torch DataLoader",
    "torchdata": "torchdata StatefulDataLoader",
    "spdl": "SPDL",
    "grain": "Grain",
    "dali": "DALI on CPU",
    "webdataset": "WebDataset",
    "litdata": "LitData",
    "streaming": "MosaicML Streaming",
    "datasets": "Hugging Face datasets",
}
"""What people call them."""
