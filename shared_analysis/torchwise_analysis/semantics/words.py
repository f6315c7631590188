"""What a file says, read from its syntax trees before anything is lowered.

Names, attributes and texts, and what the names of imports stand for. `speaking` tells by them whether a
rule could find something.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from torchwise_analysis.semantics import registry
from torchwise_analysis.source import nodes as nd
from torchwise_analysis.source.lower_ast import AstLowering


@dataclass(frozen=True, slots=True)
class Words:
    """What a file says.

    said: all words that are no texts: names, parameters, keywords, attributes, parts of imported names.
    attributes: what is taken of things that no import gave, of_imports: of those that one gave. texts: may
    be names. paths: members of libraries, as their packages export them. packages: of these, packages that
    are handed around, so that an attribute of anything may be theirs; "" for one that a text may choose.
    annotations: paths that parameters are annotated with. has_module: defines a class of modules.
    has_open_class: defines a class of which not all bases are known by name. runs_forward: calls a `forward`
    by name, other than that of a base.
    """

    said: frozenset[str]
    attributes: frozenset[str]
    of_imports: frozenset[str]
    texts: frozenset[str]
    paths: frozenset[str]
    packages: frozenset[str]
    annotations: frozenset[str]
    has_module: bool
    has_open_class: bool
    runs_forward: bool
    imports: tuple[nd.Import | nd.ImportFrom, ...] = ()

    @property
    def is_loose(self) -> bool:
        """May an attribute of anything be a library's?"""
        return bool(self.packages)

    def may_reach(self, *packages: str) -> bool:
        """May something that is handed around be one of these packages, or hold one?"""
        return any(self._holds(outer, one) for outer in self.packages for one in packages)

    def _holds(self, outer: str, package: str) -> bool:
        if not outer or outer == package or outer.startswith(f"{package}."):
            return True
        return package.startswith(f"{outer}.") and self.attributes.issuperset(
            package[len(outer) + 1 :].split(".")
        )

    def of_project(self) -> Words:
        """The same of a file that imports others of the project: what it got from them may be anything."""
        return replace(self, attributes=self.attributes | self.of_imports)

    @staticmethod
    def together(files: Iterable[Words]) -> Words:
        """What several files say."""
        given = tuple(files)
        return Words(
            frozenset[str]().union(*(one.said for one in given)),
            frozenset[str]().union(*(one.attributes for one in given)),
            frozenset[str]().union(*(one.of_imports for one in given)),
            frozenset[str]().union(*(one.texts for one in given)),
            frozenset[str]().union(*(one.paths for one in given)),
            frozenset[str]().union(*(one.packages for one in given)),
            frozenset[str]().union(*(one.annotations for one in given)),
            any(one.has_module for one in given),
            any(one.has_open_class for one in given),
            any(one.runs_forward for one in given),
        )


def words_of(trees: Iterable[ast.Module]) -> Words:
    """What a file says. `trees`: of its statements, in pieces; they are left as they are."""
    found = _Reading()
    for tree in trees:
        todo: list[ast.AST] = [*tree.body]
        while todo:
            node = todo.pop()
            read = _READERS.get(node.__class__)
            if read is None:
                todo += _below(node)
            else:
                read(found, node, todo)
    return _words(found)


# With these a text chooses what is looked up, in anything or in a module of its own choice.
_LOOKS_UP = frozenset(["getattr", "attrgetter", "methodcaller", "setattr", "eval"])
_IMPORTS = frozenset(["import_module", "__import__"])
# Modules whose members the subjects of rules are.
_PACKAGES = frozenset(
    path
    for name in registry.FUNCTIONS
    if name.startswith(("torch.", "pickle.", "joblib."))
    for path in (name.rpartition(".")[0], name.rpartition(".")[0].rpartition(".")[0])
    if path
) | frozenset(["torch.nn.init", "functorch"])
_BASES = frozenset(["Module", "LightningModule", "PreTrainedModel", "FlaxModule"])
_ASKS = frozenset(["isinstance", "issubclass", "hasattr"])
_LONGEST = 100  # characters of a text that may be a name

_Chain: TypeAlias = "tuple[str, str]"  # `("torch", ".nn.Linear")` of a dotted name
_Import: TypeAlias = "ast.Import | ast.ImportFrom"


@dataclass(slots=True)
class _Reading:
    """What was found so far. chains: dotted names, as root and rest, bases: those that classes derive from,
    compared: those that go nowhere. alone: names without a dot. looked_up: `getattr` of a chain and a text.
    imported: what names of imports stand for, rebound: names that other statements bind as well, assigned: of
    these, those that no definition of a class or function binds."""

    names: set[str] = field(default_factory=set[str])
    attributes: set[str] = field(default_factory=set[str])
    texts: set[str] = field(default_factory=set[str])
    chains: set[_Chain] = field(default_factory=set[_Chain])
    bases: set[_Chain] = field(default_factory=set[_Chain])
    alone: set[str] = field(default_factory=set[str])
    looked_up: set[tuple[str, str, str]] = field(default_factory=set[tuple[str, str, str]])
    imported: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    annotations: set[_Chain] = field(default_factory=set[_Chain])
    compared: set[_Chain] = field(default_factory=set[_Chain])
    assigned: set[str] = field(default_factory=set[str])
    rebound: set[str] = field(default_factory=set[str])
    runs_forward: bool = False
    imports_by_text: bool = False
    has_vague_base: bool = False
    imports: list[_Import] = field(default_factory=list[_Import])


def _words(found: _Reading) -> Words:
    paths = {path for name in found.alone for path in found.imported.get(name, ())}
    paths.update(map(registry.canonical, _started(found, found.chains)))
    attributes, of_imports = set(found.attributes), set[str]()
    for root, rest in found.chains | found.compared:
        is_import = root in found.imported and root not in found.rebound
        (of_imports if is_import else attributes).update(rest.split("."))
    for path in paths:  # `torch.Tensor.backward(loss)`
        whole, _, last = path.rpartition(".")
        if whole.rpartition(".")[2][:1].isupper():
            attributes.add(last)
    texts = {part for text in found.texts for part in text.split(".")}
    if not (found.names | attributes).isdisjoint(_LOOKS_UP):
        attributes |= texts
    for root, rest, member in found.looked_up:
        of_imports.add(member)
        members = (member,) if member else texts
        starts = tuple(_started(found, ((root, rest),)))
        paths.update(registry.canonical(f"{path}.{one}") for path in starts for one in members)
    packages = paths & _PACKAGES | (frozenset([""]) if found.imports_by_text else frozenset[str]())
    bases = {registry.canonical(path) for path in _started(found, found.bases)}
    bases.update(root for root, _ in found.bases)
    said = found.names.union(attributes, *(path.split(".") for path in paths))
    if found.imports_by_text:
        said |= texts
    return Words(
        frozenset(said),
        frozenset(attributes),
        frozenset(of_imports),
        frozenset(found.texts),
        frozenset(paths),
        frozenset(packages),
        frozenset(map(registry.canonical, _started(found, found.annotations))),
        any(map(_is_base, bases)),
        found.has_vague_base or any(root in found.assigned for root, _ in found.bases),
        found.runs_forward,
        _lowered(found.imports),
    )


def _lowered(imports: Iterable[_Import]) -> tuple[nd.Import | nd.ImportFrom, ...]:
    """The statements as those know them who look for the files that they name."""
    lowered = AstLowering("").statements(imports)
    return tuple(one for one in lowered if isinstance(one, nd.Import | nd.ImportFrom))


def _started(found: _Reading, chains: Iterable[_Chain]) -> Iterator[str]:
    """What chains of attributes of imported names stand for."""
    for root, rest in chains:
        for start in found.imported.get(root, ()):
            yield f"{start}{rest}"


def _is_base(path: str) -> bool:
    return path.rpartition(".")[2] in _BASES or path.startswith(("torch.nn.", "transformers."))


# --------------------------------------------------------------------------- readers of nodes

_Read: TypeAlias = "Callable[[_Reading, Any, list[ast.AST]], None]"


def _below(node: ast.AST) -> Iterator[ast.AST]:
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            yield from (one for one in value if isinstance(one, ast.AST))  # pyright: ignore[reportUnknownVariableType]
        elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
            yield value


def _chain(node: ast.AST) -> _Chain | None:
    rest = ""
    while isinstance(node, ast.Attribute):
        rest = f".{node.attr}{rest}"
        node = node.value
    return (node.id, rest) if isinstance(node, ast.Name) else None


def _name(found: _Reading, node: ast.Name, _: list[ast.AST]) -> None:
    found.names.add(node.id)
    found.alone.add(node.id)


def _attribute(found: _Reading, node: ast.Attribute, todo: list[ast.AST]) -> None:
    if node.attr == "forward" and not isinstance(node.ctx, ast.Store) and not _is_super(node.value):
        found.runs_forward = True
    chain = _chain(node)
    if chain is None:
        found.attributes.add(node.attr)
        todo.append(node.value)
    else:
        found.names.add(chain[0])
        found.chains.add(chain)


def _constant(found: _Reading, node: ast.Constant, _: list[ast.AST]) -> None:
    value = node.value
    if isinstance(value, str) and len(value) < _LONGEST and " " not in value:
        found.texts.add(value)


def _joined(found: _Reading, node: ast.JoinedStr, todo: list[ast.AST]) -> None:
    for part in node.values:
        if isinstance(part, ast.Constant):
            found.texts.add(str(part.value))
        else:
            todo.append(part)


def _formatted(_: _Reading, node: ast.FormattedValue, todo: list[ast.AST]) -> None:
    """How it is written is no text of its own, but may hold values."""
    todo.append(node.value)
    if isinstance(node.format_spec, ast.JoinedStr):
        todo += (part for part in node.format_spec.values if isinstance(part, ast.FormattedValue))


def _call(found: _Reading, node: ast.Call, todo: list[ast.AST]) -> None:
    func, args = node.func, node.args
    if isinstance(func, ast.Name):
        called = func.id
        if called in _ASKS and args:
            found.names.add(called)
            # which class something is, or whether it has a member, makes nothing of that class
            _compared(found, args, todo)
            return
        if called == "getattr" and len(args) > 1:
            chain = _chain(args[0])
            if chain is not None:
                found.looked_up.add((*chain, _text(args[1]) or ""))
                found.names.update((called, chain[0]))
                found.attributes.update(chain[1].split("."))
                todo += args[1:]
                todo += node.keywords
                return
    else:
        called = func.attr if isinstance(func, ast.Attribute) else ""
    if called in _IMPORTS and args:
        name = _text(args[0])
        if name is None or name.partition(".")[0] == "torch":
            found.imports_by_text = True
    todo.append(func)
    todo += args
    todo += node.keywords


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _compare(found: _Reading, node: ast.Compare, todo: list[ast.AST]) -> None:
    _compared(found, (node.left, *node.comparators), todo)


def _compared(found: _Reading, sides: Iterable[ast.expr], todo: list[ast.AST]) -> None:
    """Names that go nowhere, alone or in a literal list."""
    for side in sides:
        members = side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else (side,)
        for one in members:
            chain = _chain(one)
            if chain is None:
                todo.append(one)
            else:
                found.names.add(chain[0])
                found.compared.add(chain)


def _keyword(found: _Reading, node: ast.keyword, todo: list[ast.AST]) -> None:
    if node.arg is not None:
        found.names.add(node.arg)
    todo.append(node.value)


def _arg(found: _Reading, node: ast.arg, _: list[ast.AST]) -> None:
    found.names.add(node.arg)
    found.rebound.add(node.arg)
    found.assigned.add(node.arg)
    kind = node.annotation
    if isinstance(kind, ast.Subscript):  # of `Optional[X]`
        kind = kind.slice
    if isinstance(kind, ast.BinOp):
        kind = kind.left
    chain = None if kind is None else _chain(kind)
    if chain is not None:
        found.annotations.add(chain)


def _function(found: _Reading, node: ast.FunctionDef, todo: list[ast.AST]) -> None:
    found.names.add(node.name)
    found.rebound.add(node.name)
    todo += node.body
    todo += node.decorator_list
    todo.append(node.args)


def _class(found: _Reading, node: ast.ClassDef, todo: list[ast.AST]) -> None:
    found.names.add(node.name)
    found.rebound.add(node.name)
    for base in node.bases:
        chain = _chain(base.value if isinstance(base, ast.Subscript) else base)
        if chain is None:
            todo.append(base)
            found.has_vague_base = True
        else:
            found.bases.add(chain)
            found.names.update((chain[0], *chain[1].split(".")))
    todo += node.keywords
    todo += node.decorator_list
    todo += node.body


def _assign(found: _Reading, node: ast.Assign, todo: list[ast.AST]) -> None:
    for target in node.targets:
        _rebind(found, target)
    todo += node.targets
    todo.append(node.value)


def _annotated(found: _Reading, node: ast.AnnAssign, todo: list[ast.AST]) -> None:
    _rebind(found, node.target)
    todo.append(node.target)
    if node.value is not None:
        todo.append(node.value)


def _targeted(found: _Reading, node: Any, todo: list[ast.AST]) -> None:
    _rebind(found, node.target)
    todo += _below(node)


def _with_item(found: _Reading, node: ast.withitem, todo: list[ast.AST]) -> None:
    todo.append(node.context_expr)
    if node.optional_vars is not None:
        _rebind(found, node.optional_vars)
        todo.append(node.optional_vars)


def _named(
    found: _Reading, node: ast.ExceptHandler | ast.MatchAs | ast.MatchStar, todo: list[ast.AST]
) -> None:
    if node.name is not None:
        found.rebound.add(node.name)
    todo += _below(node)


def _mapped(found: _Reading, node: ast.MatchMapping, todo: list[ast.AST]) -> None:
    if node.rest is not None:
        found.rebound.add(node.rest)
    todo += _below(node)


def _rebind(found: _Reading, target: ast.expr) -> None:
    todo: list[ast.expr] = [target]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name):
            found.rebound.add(node.id)
            found.assigned.add(node.id)
        elif isinstance(node, ast.Tuple | ast.List):
            todo += node.elts
        elif isinstance(node, ast.Starred):
            todo.append(node.value)


def _import(found: _Reading, node: ast.Import, _: list[ast.AST]) -> None:
    found.imports.append(node)
    for alias in node.names:
        parts = alias.name.split(".")
        found.names.update(parts)
        means = alias.name if alias.asname else parts[0]
        found.imported.setdefault(alias.asname or means, set()).add(means)


def _import_from(found: _Reading, node: ast.ImportFrom, _: list[ast.AST]) -> None:
    found.imports.append(node)
    module = node.module or ""
    found.names.update(module.split("."))
    for alias in node.names:
        found.names.add(alias.name)
        if not node.level:  # what a library has beside itself stays unknown
            found.imported.setdefault(alias.asname or alias.name, set()).add(f"{module}.{alias.name}")


# Kinds of which there are many: what is below them stands here, so that nobody asks each field what it holds.


def _value(_: _Reading, node: Any, todo: list[ast.AST]) -> None:
    if node.value is not None:
        todo.append(node.value)


def _arguments(_: _Reading, node: ast.arguments, todo: list[ast.AST]) -> None:
    todo += node.posonlyargs
    todo += node.args
    todo += node.kwonlyargs
    todo += node.defaults
    todo += (one for one in (node.vararg, node.kwarg, *node.kw_defaults) if one is not None)


def _subscript(_: _Reading, node: ast.Subscript, todo: list[ast.AST]) -> None:
    todo.append(node.value)
    todo.append(node.slice)


def _elements(_: _Reading, node: ast.Tuple | ast.List | ast.Set, todo: list[ast.AST]) -> None:
    todo += node.elts


def _binary(_: _Reading, node: ast.BinOp, todo: list[ast.AST]) -> None:
    todo.append(node.left)
    todo.append(node.right)


def _bool_op(_: _Reading, node: ast.BoolOp, todo: list[ast.AST]) -> None:
    todo += node.values


def _unary(_: _Reading, node: ast.UnaryOp, todo: list[ast.AST]) -> None:
    todo.append(node.operand)


def _if(_: _Reading, node: ast.If, todo: list[ast.AST]) -> None:
    todo.append(node.test)
    todo += node.body
    todo += node.orelse


_READERS: dict[type, _Read] = {
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Constant: _constant,
    ast.JoinedStr: _joined,
    ast.FormattedValue: _formatted,
    ast.Call: _call,
    ast.Compare: _compare,
    ast.keyword: _keyword,
    ast.arg: _arg,
    ast.FunctionDef: _function,
    ast.AsyncFunctionDef: _function,
    ast.ClassDef: _class,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _targeted,
    ast.For: _targeted,
    ast.AsyncFor: _targeted,
    ast.NamedExpr: _targeted,
    ast.comprehension: _targeted,
    ast.withitem: _with_item,
    ast.ExceptHandler: _named,
    ast.MatchAs: _named,
    ast.MatchStar: _named,
    ast.MatchMapping: _mapped,
    ast.Import: _import,
    ast.ImportFrom: _import_from,
    ast.Expr: _value,
    ast.Return: _value,
    ast.Starred: _value,
    ast.arguments: _arguments,
    ast.Subscript: _subscript,
    ast.Tuple: _elements,
    ast.List: _elements,
    ast.Set: _elements,
    ast.BinOp: _binary,
    ast.BoolOp: _bool_op,
    ast.UnaryOp: _unary,
    ast.If: _if,
}
