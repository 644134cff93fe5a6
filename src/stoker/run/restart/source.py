"""Finds the loops around an instruction in the source of its code. Nothing here looks at values.

A loop surrounds an instruction if its body holds it. The line `for batch in loader:` itself, where a batch is asked for, is
not in its own body.
"""

import ast
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

CodePlace = tuple[int, int | None]
"""A line, counted from the first line of the code it belongs to, and a column. None where python keeps no columns."""

_PASSES_ON = frozenset({"list", "master_bar", "progress_bar", "tqdm", "tqdm_notebook", "track"})
"""Calls that give the numbers of a range as they are."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True, slots=True)
class WrittenLoop:
    """A loop as it stands in the source."""

    place: CodePlace
    line: int
    """In its file."""
    node: ast.For | ast.AsyncFor | ast.While
    call: CodePlace | None
    """Where `range` or `trange` is called for it, if its variable takes the numbers of that range."""

    @property
    def variable(self) -> str | None:
        """The loop's variable, if it is a plain name that the body does not assign."""
        return None if isinstance(self.node, ast.While) else _variable(self.node)

    @property
    def counters(self) -> dict[str, ast.Name | ast.Attribute]:
        """Names and attributes that a `while` depends on: in its condition, and where it is left."""
        return _counters(self.node) if isinstance(self.node, ast.While) else {}


def place_of(code: CodeType, instruction: int) -> CodePlace:
    """Where an instruction stands; `instruction` is a frame's `f_lasti`."""
    line, column = _positions(code)[instruction // 2]
    return (line or code.co_firstlineno) - code.co_firstlineno, column


@lru_cache(maxsize=4096)
def loops_around(code: CodeType, instruction: int) -> tuple[WrittenLoop, ...] | None:
    """The loops around an instruction in its code, the outermost first. None if the source cannot be had."""
    if code.co_name.startswith("<") and code.co_name != "<module>":
        return ()  # a comprehension or a lambda holds no loop
    tree = _tree(code.co_filename)
    if tree is None:
        return None
    first = code.co_firstlineno
    line, column = place_of(code, instruction)
    loops, scope = _descend(tree.body, (line + first, column))
    return tuple(
        WrittenLoop((loop.lineno - first, loop.col_offset), loop.lineno, loop, _range_call(loop, scope, first))
        for loop in loops
    )


@lru_cache(maxsize=4096)
def _variable(loop: ast.For | ast.AsyncFor) -> str | None:
    if not isinstance(loop.target, ast.Name) or loop.target.id in _assigned(loop.body):
        return None
    return loop.target.id


@lru_cache(maxsize=4096)
def _counters(loop: ast.While) -> dict[str, ast.Name | ast.Attribute]:
    tests = [loop.test, *(inner.test for inner in _inside(loop.body) if isinstance(inner, ast.If) and _leaves(inner))]
    found = [part for test in tests for part in ast.walk(test) if isinstance(part, (ast.Name, ast.Attribute))]
    return {ast.unparse(part): part for part in found}


@lru_cache(maxsize=4096)
def _positions(code: CodeType) -> list[tuple[int | None, int | None]]:
    return [(line, column) for line, _, column, _ in code.co_positions()]


@lru_cache(maxsize=256)
def _tree(path: str) -> ast.Module | None:
    text = "".join(linecache.getlines(path))
    try:
        return ast.parse(text) if text else None
    except SyntaxError:
        return None


def _descend(
    body: Sequence[ast.stmt], at: CodePlace
) -> tuple[list[ast.For | ast.AsyncFor | ast.While], Sequence[ast.stmt]]:
    """The loops around a place, in the innermost function that holds it, and that function's body."""
    loops: list[ast.For | ast.AsyncFor | ast.While] = []
    scope = body
    while True:
        found = next(((statement, part) for statement in body for part in _bodies(statement) if _holds(part, at)), None)
        if found is None:
            return loops, scope
        statement, body = found
        if isinstance(statement, _SCOPES):
            loops, scope = [], body
        elif isinstance(statement, _LOOPS) and body is statement.body:
            loops.append(statement)


def _bodies(statement: ast.AST) -> Iterator[list[ast.stmt]]:
    """The blocks of a compound statement."""
    for name in ("body", "orelse", "finalbody"):
        if isinstance(block := getattr(statement, name, None), list) and block:
            yield block
    for name in ("handlers", "cases"):
        for part in getattr(statement, name, ()):
            yield part.body


def _holds(block: Sequence[ast.stmt], at: CodePlace) -> bool:
    first, last = block[0], block[-1]
    line, column = at
    if column is None:
        return first.lineno <= line <= (last.end_lineno or last.lineno)
    start = min(part.lineno for part in [first, *getattr(first, "decorator_list", ())]), first.col_offset
    return start <= (line, column) < (last.end_lineno or last.lineno, last.end_col_offset or 0)


def _inside(block: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements of a block, those of functions that are defined in it excepted."""
    for statement in block:
        yield statement
        if not isinstance(statement, _SCOPES):
            for part in _bodies(statement):
                yield from _inside(part)


def _leaves(statement: ast.If) -> bool:
    return any(isinstance(inner, (ast.Break, ast.Return)) for inner in _inside(statement.body))


def _assigned(block: Sequence[ast.stmt]) -> set[str]:
    """Names that a block gives a value."""
    return {
        part.id
        for statement in _inside(block)
        for part in ast.walk(statement)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }


def _range_call(loop: ast.For | ast.AsyncFor | ast.While, scope: Sequence[ast.stmt], first: int) -> CodePlace | None:
    if not isinstance(loop, ast.For):
        return None
    iterated: ast.expr = loop.iter
    if isinstance(iterated, ast.Name):  # `epochs = tqdm(range(9))`, once, before the loop
        given = [
            statement.value
            for statement in _inside(scope)
            if isinstance(statement, ast.Assign) and [ast.unparse(target) for target in statement.targets] == [iterated.id]
        ]
        iterated = given[0] if len(given) == 1 else iterated
    while isinstance(iterated, ast.Call):
        name = iterated.func.attr if isinstance(iterated.func, ast.Attribute) else getattr(iterated.func, "id", None)
        if (name == "range" and isinstance(iterated.func, ast.Name)) or name == "trange":
            return iterated.lineno - first, iterated.col_offset
        if name not in _PASSES_ON or not iterated.args:
            return None
        iterated = iterated.args[0]
    return None
