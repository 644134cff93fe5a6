"""Run a script, unchanged, with Stoker's DataLoader in the place of torch's.

SCRIPT is a path, `-m MODULE`, `-c CODE`, `-` for a script from standard input, or a program that starts python, such as
torchrun; `torchrun ... -m stoker run train.py` works, too. Its arguments, output, exit code and tracebacks are its own.
Every process that it starts has the loader, too. An error of Stoker's shows the frames of the script alone (--debug: all).
At the end one line on stderr tells how many batches there were, and how long the script waited for them; unless it failed.
"""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.errors import ConfigError
from stoker.extras import CACHE
from stoker.mount.start import WAYS
from stoker.plan import PREPS, Plan
from stoker.run.script import command, execute
from stoker.units import parse_bytes, parse_place


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("--plan", metavar="FILE", help="a plan.toml; what the script says explicitly wins over it")
    parser.add_argument("--workers", choices=["processes", "threads"], help="what workers are, where the script has some")
    parser.add_argument(
        "--cache",
        metavar="SIZE",
        help="keep files that the script's datasets read in memory, up to so much (8GB, 512MiB) for each dataset; all "
        "processes and jobs of this host share it",
    )
    parser.add_argument(
        "--cache-disk",
        metavar="DIR:SIZE",
        help="with --cache: keep what memory has no room for in this folder (of a local disk), up to so much for each "
        "dataset; it is found again after a reboot",
    )
    parser.add_argument(
        "--mount",
        metavar="URL=DIR",
        action="append",
        default=[],
        help="with --cache: let the folder DIR have what is below an address (s3://bucket/train), read-only; what opens "
        "files there reads through the cache (docs/mount.md)",
    )
    parser.add_argument(
        "--mount-by",
        choices=WAYS,
        help="fuse: for every program; python: for Python's own functions alone. Otherwise fuse, where it can be used",
    )
    parser.add_argument(
        "--peers",
        metavar="auto|HOST:PORT,...",
        help="with --cache: hosts of this job give each other what their caches hold, before storage is read. auto: they "
        "find each other, under torchrun or by the script's process group. Otherwise all are named, this one among them, "
        "and share a secret (docs/peers.md)",
    )
    parser.add_argument(
        "--group",
        metavar="NAME",
        help="prepare every batch once for all jobs of this name on this host (a hyper-parameter search, say); they must "
        "have the same data, batch size and transforms",
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        type=int,
        help="let random numbers of datasets belong to the position of a sample, drawn from this seed: then any worker may "
        "prepare any batch, and results do not depend on the number of workers (they are not those without --seed)",
    )
    parser.add_argument(
        "--ranks",
        choices=("shared",),
        help="shared: a worker that has nothing to do helps the rank of this host that is behind; datasets that "
        "draw need --seed (docs/ranks.md)",
    )
    parser.add_argument(
        "--offload",
        metavar="ray://HEAD:PORT|auto|tcp://HOST:PORT",
        help="let workers on other hosts prepare a part of the batches (docs/offload.md); datasets that draw need --seed. "
        "ray: that Ray cluster starts them; auto: the cluster that this host is a node of. tcp: they are started by "
        "`stoker worker`, dial this address of this host, and share a secret with it",
    )
    parser.add_argument(
        "--prep",
        choices=PREPS,
        help="tail: workers stop at the bytes of a picture, and the GPU turns them into numbers; batches arrive there, the "
        "same bit for bit. device: the GPU decodes, crops, resizes, flips and changes colours, too (docs/prep.md). Both "
        "where torch's default_collate makes the batches and an optimizer has parameters on a GPU",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="save models, optimizers, schedulers and the training loader there by itself, and go on from there when the "
        "script is started again; see docs/run.md for what that can and cannot do",
    )
    parser.add_argument("--checkpoint-every", metavar="N", type=int, help="every N iterations, instead of by a budget")
    parser.add_argument(
        "--restart-args",
        metavar="ARGS",
        help="when the script goes on from a checkpoint, add these to its arguments, so that it begins there by itself: "
        "'--start-epoch {epoch}'; {step} is the number of updates before",
    )
    parser.usage = "stoker run [OPTIONS] [--] SCRIPT [ARGS...]"
    parser.set_defaults(script=[])


def run(options: argparse.Namespace) -> int:
    """Become the script."""
    plan = Plan() if options.plan is None else Plan.load(options.plan)
    if options.workers is not None:
        plan = replace(plan, workers=options.workers)
    if options.cache is not None:
        plan = replace(plan, cache_bytes=parse_bytes(options.cache, "--cache"))
    if plan.cache_bytes:
        CACHE.check()
    if options.cache_disk is not None:
        if not plan.cache_bytes:
            raise ConfigError("--cache-disk needs --cache SIZE: the disk keeps what memory has no room for")
        folder, _ = parse_place(options.cache_disk, "--cache-disk")
        plan = replace(plan, cache_disk=os.path.abspath(folder) + options.cache_disk[len(folder) :])
    if options.peers is not None:
        if not plan.cache_bytes:
            raise ConfigError("--peers needs --cache SIZE: hosts give each other what their caches hold")
        _check_peers(options.peers, options.script)
        plan = replace(plan, peers=options.peers)
    for_python: list[dict[str, Any]] = []
    if options.mount:
        plan, for_python = _mount(options.mount, options.mount_by, plan)
    elif options.mount_by is not None:
        raise ConfigError("--mount-by needs --mount URL=DIR")
    if options.group is not None:
        from stoker.group.door import check_name  # what is not asked for is not loaded: that takes a tenth of a second

        plan = replace(plan, group=check_name(options.group))
    if options.seed is not None:
        plan = replace(plan, seed=options.seed)
    if options.ranks is not None:
        plan = replace(plan, share_ranks=True)
    if options.offload is not None:
        from stoker.remote.address import check

        check(options.offload)
        plan = replace(plan, offload=options.offload)
    if options.prep is not None:
        plan = replace(plan, prep=options.prep)
    if options.checkpoint_every is not None and options.checkpoint_every < 1:
        raise ConfigError("--checkpoint-every must be 1 or more")
    if options.restart_args is not None and options.checkpoint is None:
        raise ConfigError("--restart-args needs --checkpoint DIR: only then is there something to go on from")
    words: list[str] | None = options.script
    if options.checkpoint is not None:
        from stoker.run.restart.start import begin

        words = begin(Path(options.checkpoint).absolute(), options.script, options.restart_args)
    if words is not None:
        settings = {
            "plan": plan.values(),
            "checkpoint": options.checkpoint,
            "every": options.checkpoint_every,
            "command": list(options.script),
            "debug": options.debug,
            "is_told": options.restart_args is not None,
            "mounts": for_python,
        }
        execute(words, settings)
    return 0


def _check_peers(peers: str, words: list[str]) -> None:
    """What loaders would say of peers. A program (srun, say) may start the script on other hosts: there it is said."""
    from stoker.wire.addresses import local_addresses, parse_addresses
    from stoker.wire.secret import VARIABLE, shared_secret
    from stoker.wire.tls import from_environment

    addresses = [] if peers == "auto" else parse_addresses(peers)
    if command(words)[0] != sys.executable:
        return
    if addresses:
        local_addresses(addresses)
    if addresses or os.environ.get(VARIABLE):
        shared_secret()
    from_environment()


def _mount(wanted: list[str], way: str | None, plan: Plan) -> tuple[Plan, list[dict[str, Any]]]:
    """Mount folders. The cache is theirs: the script's loaders need none for what they read there."""
    from stoker.mount.start import PYTHON, check_apart, mount, own_mounts, parse_mount

    places = [parse_mount(text) for text in wanted]
    if not plan.cache_bytes:
        raise ConfigError("--mount needs --cache SIZE: what is read below the folder is kept there")
    if plan.peers is not None:
        raise ConfigError("--mount does not go with --peers: a mounted folder has a cache of this host alone")
    check_apart([folder for _, folder in places])
    if way != PYTHON:
        own_mounts()
    for_python: list[dict[str, Any]] = []
    cache = {"cache": plan.cache_bytes, "cache_dir": plan.cache_dir, "cache_disk": plan.cache_disk}
    for address, folder in places:
        mounted = mount({"address": address, "folder": folder, **cache}, way)
        how = "by FUSE"
        if mounted.for_python is not None:
            for_python.append(mounted.for_python)
            how = f"for Python alone, not for libraries in C or other programs ({mounted.without_fuse})"
        said = f"{address} is at {folder}, {how}: read-only, {mounted.files:,} files"
        print(f"stoker: {said}", file=sys.stderr, flush=True)
    return replace(plan, cache_bytes=None, cache_dir=None, cache_disk=None), for_python
