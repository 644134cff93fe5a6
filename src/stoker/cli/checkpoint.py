"""List, verify and export checkpoints.

`ls` shows what is in a directory, `verify` compares every byte with its checksum (exit code 1 if one differs), `export`
writes a checkpoint as a plain file: for torch.load, or as safetensors. Nothing in a directory is ever changed.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from stoker.checkpoint.files import Damaged, Directory, Manifest
from stoker.errors import CheckpointError, CommandError
from stoker.extras import EXPORT, TORCH
from stoker.units import format_bytes


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("ls", help="what is in a directory, the newest first; contents are not read")
    verifying = actions.add_parser("verify", help="compare every byte with its checksum")
    exporting = actions.add_parser("export", help="write one as a file for torch.load, or as safetensors")
    for action in (listing, verifying, exporting):
        action.add_argument("directory", type=Path, help="the directory that was given to stoker.Checkpointer")
    for action in (listing, verifying):
        action.add_argument("--json", action="store_true", help="print JSON")
    exporting.add_argument("file", type=Path, help="where to: NAME.safetensors, or any other name for torch.load")
    exporting.add_argument("--step", type=int, help="which one (default: the newest that is whole)")
    exporting.add_argument("--part", help="only this part, by the name that Checkpointer was given: model, for one")


def run(options: argparse.Namespace) -> int:
    """List, verify or export checkpoints."""
    if options.action == "export":
        (EXPORT if options.file.suffix == ".safetensors" else TORCH).check()
    directory = Directory(options.directory)
    if not options.directory.is_dir():
        raise CommandError(f"there is no directory {options.directory}")
    names = directory.names()
    if not names:
        raise CommandError(f"there are no checkpoints in {options.directory}")
    if options.action == "export":
        return _export(directory, names, options)
    rows = [_row(directory, name, verify=options.action == "verify") for name in names]
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print(f"{'step':>10}  {'written':16}  {'size':>8}  {'state':8}  name")
        for row in rows:
            size = "?" if row["bytes"] is None else format_bytes(row["bytes"])
            written = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["written_at"])) if row["written_at"] else "?"
            kept = "  kept" if row["kept"] else ""
            problem = f"  {row['problem']}" if row["problem"] else ""
            print(f"{row['step']:>10}  {written:16}  {size:>8}  {row['state']:8}  {row['name']}{kept}{problem}")
    return 1 if any(row["state"] == "damaged" for row in rows) and options.action == "verify" else 0


def _row(directory: Directory, name: str, *, verify: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"step": int(name.split("-")[0]), "name": name, "bytes": None, "kept": False, "problem": ""}
    row["written_at"] = directory.written_at(name)
    try:
        manifest = directory.verify(name) if verify else directory.manifest(name)
        row |= {"bytes": manifest.data_bytes, "kept": manifest.kept, "state": "whole" if verify else "listed"}
    except CheckpointError as error:
        row |= {"state": "damaged", "problem": str(error)}
    return row


def _export(directory: Directory, names: list[str], options: argparse.Namespace) -> int:
    if not options.file.parent.is_dir():
        raise CommandError(f"{options.file} cannot be written: there is no directory {options.file.parent}")
    for name in names:
        if options.step is not None and int(name.split("-")[0]) != options.step:
            continue
        try:
            manifest, contents = directory.load(name)
        except Damaged as damage:
            print(f"{name} is passed by: {damage}")
            continue
        _check_part(manifest, options.part)
        if options.file.exists():
            raise CommandError(f"{options.file} exists already")
        from stoker.checkpoint.export import as_safetensors, as_torch_file  # wrong use is told without torch, at once

        write = as_safetensors if options.file.suffix == ".safetensors" else as_torch_file
        write(options.file, manifest, contents, options.part)
        print(f"{options.file}: step {manifest.step}")
        return 0
    raise CommandError(
        "no such checkpoint is whole" if options.step is None else f"there is no whole checkpoint of step {options.step}"
    )


def _check_part(manifest: Manifest, part: str | None) -> None:
    parts = manifest.document.get("stateful") if isinstance(manifest.document, dict) else None
    if not isinstance(parts, dict):
        raise CommandError("it has no states in it: those of sharded runs are for torch.distributed.checkpoint")
    if part is not None and part not in parts:
        raise CommandError(f"there is no part {part!r}: it has {', '.join(parts)}")
