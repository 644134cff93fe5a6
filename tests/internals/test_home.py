"""torch's private names are in `internals/`, and what its iterators keep is looked at in `feed/carrier.py` alone."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

import stoker
from stoker.internals import names

SOURCE = Path(stoker.__file__).parent
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path.parent.name != "internals")
IMPORTING = SOURCE / "internals"
CARRIER = SOURCE / "feed" / "carrier.py"
LOADER = SOURCE / "torch" / "loader.py"


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def mentions(text: str) -> Iterator[str]:
    """The private names of torch that a module imports, reaches by attributes, or has as text."""
    aliases: dict[str, str] = {}
    nodes = list(ast.walk(ast.parse(text)))
    for node in nodes:
        match node:
            case ast.Import():
                for alias in node.names:
                    if alias.name.split(".")[0] == "torch":
                        aliases[alias.asname or "torch"] = alias.name if alias.asname else "torch"
                        yield alias.name
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] == "torch":
                for alias in node.names:
                    aliases[alias.asname or alias.name] = f"{module}.{alias.name}"
                    yield f"{module}.{alias.name}"
    for node in nodes:
        match node:
            case ast.Attribute() if root_of(node) in aliases:
                root, _, rest = ast.unparse(node).partition(".")
                yield f"{aliases[root]}.{rest}"
            case ast.Constant(value=str(value)) if value.startswith("torch.") and value.replace(".", "_").isidentifier():
                yield value


def root_of(node: ast.expr) -> str:
    """The name that attributes are of; empty if they are of something else."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


@functools.cache
def kept_by_torch() -> set[str]:
    """What torch's loaders and iterators keep and do under private names."""
    kinds = (names.Loader, names.BaseIterator, names.InlineIterator, names.WorkersIterator)
    functions = [value for kind in kinds for value in vars(kind).values() if hasattr(value, "__code__")]
    found = {name for function in functions for name in function.__code__.co_names}
    return {name for name in found | {name for kind in kinds for name in vars(kind)} if is_private(name)}


def looks_at(text: str) -> Iterator[str]:
    """Private names of other objects than its own that a module reads or sets."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name) if is_private(name):
                yield name
            case ast.Call(func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[_, ast.Constant(value=str(name)), *_]):
                yield name
            case ast.keyword(arg=str(name)) if is_private(name):
                yield name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_mentions_no_private_name_of_torch(path: Path) -> None:
    text = path.read_text()
    assert [name for name in mentions(text) if is_private(name)] == []
    if path not in (CARRIER, LOADER):
        kept = kept_by_torch() & set(looks_at(text))
        assert kept <= ours(text), f"{kept - ours(text)}: by a hook of feed/carrier.py, or a name in internals/"


def ours(text: str) -> set[str]:
    """Names that are torch's, too, and that this module gives to objects of its own."""
    own = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                own.add(name)
            case ast.FunctionDef(name=name):
                own.add(name)
    return own


def test_only_one_module_makes_iterators_of_torchs() -> None:
    makers = set()
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            is_import = isinstance(node, ast.ImportFrom) and node.module == "stoker.internals.names"
            if is_import and any(alias.name.endswith("Iterator") for alias in node.names):
                makers.add(path)
    assert makers == {CARRIER, LOADER}  # the loader's annotations


@pytest.mark.parametrize("module", ["names", "tensors"])
def test_each_name_says_why_it_is_needed(module: str) -> None:
    body = ast.parse((IMPORTING / f"{module}.py").read_text()).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            assert isinstance(following, ast.Expr), ast.unparse(node)
            assert isinstance(following.value, ast.Constant), ast.unparse(node)


def test_the_check_finds_what_it_is_for() -> None:
    text = """
import torch
import torch.utils.data.dataloader as loading
from torch._utils import ExceptionWrapper
from torch.utils.data import _DatasetKind, DataLoader
torch._C._autograd._profiler_enabled()
loading._BaseDataLoaderIter
hook("torch.jit._script")
loader._auto_collation
getattr(iterator, "_workers", [])
"""
    assert {name for name in mentions(text) if is_private(name)} == {
        "torch._utils.ExceptionWrapper",
        "torch.utils.data._DatasetKind",
        "torch._C._autograd._profiler_enabled",
        "torch._C._autograd",
        "torch._C",
        "torch.utils.data.dataloader._BaseDataLoaderIter",
        "torch.jit._script",
    }
    assert {"_auto_collation", "_workers"} <= kept_by_torch() & set(looks_at(text))
