"""What can be broken in a Python file, read from its syntax tree: one small change at a time.

Left alone, because no test of behaviour could or should notice: docstrings, annotations, decorators, words of messages
(f-strings, and whatever stands in a ``raise``), ``__repr__``, protocols (nothing runs there), ``zip(strict=...)`` (an
assertion). An assignment is removed only if its name has another value without it: else the mutant is a NameError,
which any test that merely runs the line would kill.

``mutmut`` 3 was looked at: it changes functions only, and our settings are defaults of dataclass fields.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

COMPARISONS = {  # the edge, and the opposite
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}
EXTREMES = {"min": "max", "max": "min"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BIG = 100  # from here on, one more is beneath what the number stands for: it is multiplied instead


class Site(NamedTuple):
    """One place and one change. ``apply`` makes it, in the tree that the site was found in."""

    line: int
    old: str
    new: str
    apply: Callable[[], object]


def sites(tree: ast.Module) -> list[Site]:
    """Every change of ``tree``, in the order of the file."""
    return sorted(_block(tree.body, {}), key=lambda site: site.line)


def _changed(value: object) -> object:
    """The other constant: 0 ↔ 1, True ↔ False, n → n + 1, and a thousandfold for a big one."""
    if isinstance(value, bool):
        return not value
    assert isinstance(value, (int, float))
    if value in (0, 1):
        return type(value)(1 - value)
    return value * 1000 if abs(value) >= BIG else value + 1


def _swap(node: ast.AST, field: str, new: object, place: int | None = None, shown: ast.AST | None = None) -> Site:
    """``node.field`` (or its element at ``place``) becomes ``new``; the change is told with ``shown``."""
    shown = shown or node

    def put(value: object = new) -> None:
        if place is None:
            setattr(node, field, value)
        else:
            getattr(node, field)[place] = value

    before = getattr(node, field) if place is None else getattr(node, field)[place]
    old = ast.unparse(shown)
    put()
    changed = ast.unparse(shown)
    put(before)
    return Site(shown.lineno, old, changed, put)  # type: ignore[attr-defined]


def _block(body: list[ast.stmt], bound: dict[str, int], whole: bool = False) -> Iterator[Site]:
    """Changes in these statements; ``bound`` counts how often each name of the function gets a value.

    ``whole``: they are all of a function, so that the last one is its end.
    """
    for place, node in enumerate(body):
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Assert, ast.Pass, ast.Global, ast.Nonlocal)):
            continue
        if isinstance(node, ast.ClassDef):
            if not any(ast.unparse(base).startswith("Protocol") for base in node.bases):
                yield from _block(node.body, {})
            continue
        if isinstance(node, FUNCTIONS):
            yield from _function(node) if node.name != "__repr__" else ()
            continue
        end, empty = whole and node is body[-1], ast.unparse(node) in ("return", "return None")
        if bound and _removable(node, bound) and not (end and empty):
            yield _removal(body, place)
        if isinstance(node, ast.Return) and not end and not empty:  # at the end, the same as the removal
            yield _swap(node, "value", None)
        yield from _statement(node, bound)


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Site]:
    given = [a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)]
    stored = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    bound = {name: [*given, *stored].count(name) for name in [*given, *stored, "return"]}
    for field in ("defaults", "kw_defaults"):
        for place, default in enumerate(getattr(node.args, field)):
            if default is not None:
                yield from _default(node.args, field, place)
                yield from _expression(default)
    yield from _block(node.body, bound, whole=True)


def _default(node: ast.AST, field: str, place: int | None = None) -> Iterator[Site]:
    """A default that is no constant: math.nan and math.inf become 0."""
    value = getattr(node, field) if place is None else getattr(node, field)[place]
    if isinstance(value, ast.Attribute) and value.attr in ("nan", "inf"):
        zero = ast.copy_location(ast.Constant(0.0), value)
        put = _swap(node, field, zero, place, shown=value).apply
        yield Site(value.lineno, f"default {ast.unparse(value)}", "0.0", put)


def _removable(node: ast.stmt, bound: dict[str, int]) -> bool:
    """Whether the function can go on without this statement, one way or another."""
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant)  # a docstring
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [n for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
        stored = [n.id for n in names if isinstance(n.ctx, ast.Store)]
        return all(bound.get(name, 2) > 1 for name in stored)
    return isinstance(node, (ast.AugAssign, ast.Return, ast.Raise, ast.Delete, ast.Continue, ast.Break))


def _removal(body: list[ast.stmt], place: int) -> Site:
    node = body[place]
    gone = ast.copy_location(ast.Pass(), node)
    return Site(node.lineno, ast.unparse(node).splitlines()[0], "(removed)", lambda: body.__setitem__(place, gone))


def _statement(node: ast.stmt, bound: dict[str, int]) -> Iterator[Site]:
    if isinstance(node, ast.Raise) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
        return
    if isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
        yield _swap(node, "op", ARITHMETIC[type(node.op)]())
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        yield from _default(node, "value")
        yield from _other_word(node)
        yield from _expression(node.value)
        return
    for _, value in ast.iter_fields(node):
        if isinstance(value, ast.expr):
            yield from _expression(value)
        elif isinstance(value, list):
            inside = [item for item in value if isinstance(item, ast.stmt)]
            if inside and inside == value:
                yield from _block(value, bound)
            for item in value:
                if isinstance(item, ast.expr):
                    yield from _expression(item)
                elif isinstance(item, ast.ExceptHandler):
                    yield from _block(item.body, bound)
                elif isinstance(item, ast.withitem):
                    yield from _expression(item.context_expr)
    if isinstance(node, (ast.If, ast.While)):
        yield from _negated(node)


def _negated(node: ast.If | ast.While | ast.IfExp) -> Iterator[Site]:
    """The condition turned around, unless a change inside it does that already."""
    test = node.test
    if isinstance(test, ast.UnaryOp) or (isinstance(test, ast.Compare) and len(test.ops) == 1):
        return
    old, other = ast.unparse(test), ast.copy_location(ast.UnaryOp(ast.Not(), test), test)
    yield Site(test.lineno, f"if {old}", f"if not ({old})", lambda: setattr(node, "test", other))


def _other_word(node: ast.AnnAssign) -> Iterator[Site]:
    """The default of a ``Literal[...]``: the next word of it."""
    if not (isinstance(node.annotation, ast.Subscript) and ast.unparse(node.annotation.value) == "Literal"):
        return
    words = [n.value for n in ast.walk(node.annotation.slice) if isinstance(n, ast.Constant)]
    constants = [n for n in ast.walk(node.value or node) if isinstance(n, ast.Constant) and n.value in words]
    for constant in constants[:1]:
        other = words[(words.index(constant.value) + 1) % len(words)]
        yield _swap(constant, "value", other)


def _expression(root: ast.expr) -> Iterator[Site]:
    """Changes of this expression and what is inside it."""
    if isinstance(root, (ast.JoinedStr, ast.Lambda)):
        if isinstance(root, ast.Lambda):
            yield from _expression(root.body)
        return
    yield from _own(root)
    for child in ast.iter_child_nodes(root):
        if isinstance(child, ast.expr):
            yield from _expression(child)
        elif isinstance(child, ast.keyword) and child.arg != "strict":
            yield from _expression(child.value)
        elif isinstance(child, ast.comprehension):
            yield from _expression(child.iter)
            for condition in child.ifs:
                yield from _expression(condition)


def _same(node: ast.BinOp) -> bool:
    """Whether another operator would change no number: x · 1 is x / 1, and texts are put together, not added."""
    texts = [n for n in (node.left, node.right) if isinstance(n, ast.JoinedStr) or _is(n, str)]
    return bool(texts) or (isinstance(node.op, (ast.Mult, ast.Div)) and _is(node.right, float, int, value=1))


def _is(node: ast.expr, *kinds: type, value: object = None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, kinds) and value in (None, node.value)


def _own(node: ast.expr) -> Iterator[Site]:
    """Changes of this node alone."""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            for other in COMPARISONS[type(operator)]:
                yield _swap(node, "ops", other(), place)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _same(node):
        yield _swap(node, "op", ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield _swap(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield _swap(node, "op", ast.UAdd())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield _swap(node, "operand", ast.copy_location(ast.UnaryOp(ast.Not(), node.operand), node.operand))
    elif isinstance(node, ast.IfExp):
        yield from _negated(node)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in EXTREMES:
        yield _swap(node.func, "id", EXTREMES[node.func.id])
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield _swap(node, "value", _changed(node.value))
