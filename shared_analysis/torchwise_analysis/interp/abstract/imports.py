"""Imports: other files of the project are run when they are first imported, libraries stay names.

What those files import and define themselves is found out when it is used: a package whose `__init__`
imports all of its modules costs what is used of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import cast

from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.frames import OUTSIDE, Frame
from torchwise_analysis.interp.abstract.machine import Machine
from torchwise_analysis.names.project import SourceModule
from torchwise_analysis.source import nodes as nd

_DEFINING = (
    nd.Import,
    nd.ImportFrom,
    nd.FunctionDef,
    nd.ClassDef,
    nd.Assign,
    nd.AnnAssign,
    nd.If,
    nd.Try,
    nd.With,
)


def import_(m: Machine, node: nd.Import) -> None:
    for alias in node.names:
        top = alias.name.partition(".")[0]
        if _can_wait(m):
            m.bind(alias.asname or top, _deferred(m, node, alias.name if alias.asname else top))
            continue
        m.bind(alias.asname or top, _module_named(m, alias.name if alias.asname else top))
        if alias.name != top and not alias.asname:
            _enter(m, m.project.find(alias.name, m.file))


def _module_named(m: Machine, name: str) -> va.Value:
    return _enter(m, m.project.find(name, m.file)) or va.Library(None, name)


def import_from(m: Machine, node: nd.ImportFrom) -> None:
    if _can_wait(m) and all(alias.name != "*" for alias in node.names):
        for alias in node.names:
            m.bind(alias.asname or alias.name, _deferred(m, node, alias.name))
        return
    module = _enter(m, _find(m, node, node.module))
    for alias in node.names:
        if alias.name == "*":
            if module is not None:
                _star(m, module)
            continue
        m.bind(alias.asname or alias.name, _imported(m, node, module, alias.name))


def _can_wait(m: Machine) -> bool:
    """Is this at the top of another file?"""
    return m.file != m.path and m.frames[-1].name == "<module>"


def _deferred(m: Machine, node: nd.Stmt, name: str) -> va.Deferred:
    return va.Deferred(None, m.file, m.frames[-1].id, m.line, node, name)


def resolve(m: Machine, key: tuple[object, ...], name: va.Deferred) -> va.Value:
    """What a name of another file is; the fact `key` holds it from now on."""
    if name in m.resolving:  # it is defined by way of itself
        return va.unknown(None)
    m.resolving.append(name)
    file, m.file = m.file, name.path
    try:
        value = _defined(m, name)
    finally:
        m.file = file
        m.resolving.pop()
    if not isinstance(value, va.Unknown) or not isinstance(name.node, nd.Import | nd.ImportFrom):
        m.state.settle(key, value)
    return value


def _defined(m: Machine, name: va.Deferred) -> va.Value:
    node = name.node
    if isinstance(node, nd.Import):
        return _module_named(m, name.name)
    if isinstance(node, nd.ImportFrom):
        return _imported(m, node, _enter(m, _find(m, node, node.module)), name.name)
    frame = Frame(name.frame, (name.frame,), name.path, m.body_facts(()))
    _apart(m, frame, name.line, lambda: m.run_block((node,)))
    value = m.state.get(("v", name.frame, name.name))
    return va.unknown(None) if value is None or value is name else cast("va.Value", value)


def _imported(m: Machine, node: nd.ImportFrom, module: va.ProjectModule | None, name: str) -> va.Value:
    if module is not None:
        value = _held(m, module, name)
        if value is not None:
            return value
    if module is not None or node.level or node.module:
        inner = _enter(m, _find(m, node, f"{node.module}.{name}" if node.module else name))
        if inner is not None:
            return inner
    if module is not None or node.level:
        return va.unknown(None)
    return va.Library(None, f"{node.module}.{name}" if node.module else name)


def _held(m: Machine, module: va.ProjectModule, name: str) -> va.Value | None:
    """What the name is in the module."""
    key = ("v", module.frame, name)
    value = m.state.get(key)
    if isinstance(value, va.Deferred):
        return resolve(m, key, value) if value not in m.resolving else None
    return cast("va.Value | None", value)


def member(m: Machine, module: va.ProjectModule, name: str, node: nd.Node) -> va.Value:
    """`module.name`: a name of the module, or its submodule."""
    value = _held(m, module, name)
    if value is not None:
        return value
    if module.path.endswith("__init__.py"):
        inner = _enter(m, m.project.find_relative(name, 1, module.path))
        if inner is not None:
            return inner
    return va.unknown(None)


def is_missing(m: Machine, node: nd.Stmt) -> bool:
    """Is this an import from the own package of something that is not there?"""
    if not isinstance(node, nd.ImportFrom) or not node.level or _find(m, node, node.module) is not None:
        return False
    names = (f"{node.module}.{alias.name}" if node.module else alias.name for alias in node.names)
    return all(_find(m, node, name) is None for name in names)


def _find(m: Machine, node: nd.ImportFrom, name: str) -> SourceModule | None:
    if node.level:
        return m.project.find_relative(name, node.level, m.file)
    return m.project.find(name, m.file) if name else None


def _star(m: Machine, module: va.ProjectModule) -> None:
    for key in [k for k in m.state.facts if k[0] == "v" and k[1] == module.frame]:
        name = cast("str", key[2])
        if not name.startswith("_"):
            m.bind(name, cast("va.Value", m.state.get(key)))


_MOST_AT_ONCE = 12  # files whose definitions wait for each other


def _enter(m: Machine, found: SourceModule | None) -> va.ProjectModule | None:
    """Run the definitions of a project file once; its loops and calls at module level are not ours.

    They are the same whoever needs them first: nothing of the caller's path is seen or taken back.
    """
    if found is None or found.is_library or found.path == m.path:
        return None
    known = m.modules.get(found.path)
    if known is not None:
        return va.ProjectModule(None, found.path, known)
    if len(m.modules) >= m.limits.files or m.entering >= _MOST_AT_ONCE:
        m.count("skipped")
        return None
    module = m.project.load(found.path)
    m.loaded[found.path] = module
    if module is None:
        return None
    frame_id = m.fresh_id()
    m.modules[found.path] = frame_id
    frame = Frame(frame_id, (frame_id,), found.path, m.body_facts(()))
    m.entering += 1
    try:
        _apart(m, frame, 0, lambda: _define(m, module.body, _bound_often(module.body)))
    finally:
        m.entering -= 1
    return va.ProjectModule(None, found.path, frame_id)


def _apart(m: Machine, frame: Frame, line: int, body: Callable[[], None]) -> None:
    """Run code at the top of another file as its import would, whoever asks for it."""
    saved = (m.file, m.line, m.loops, m.calls, m.guards, m.scopes, m.forward, m.world)
    frames, nesting, trail = m.frames, m.nesting, m.state.apart()
    m.frames, m.nesting = [frames[0], frame], 0
    m.file, m.line, m.loops, m.calls, m.guards = frame.path, line, (), (), ()
    m.scopes, m.forward, m.world = OUTSIDE, None, ()
    try:
        body()
    finally:
        m.frames, m.nesting = frames, nesting
        m.file, m.line, m.loops, m.calls, m.guards, m.scopes, m.forward, m.world = saved
        m.state.rejoin(trail)
    m.alive = True


def _define(m: Machine, body: nd.Block, often: Collection[str]) -> None:
    """Take up what a file defines. What binds one name, once, waits until the name is used."""
    for statement in body:
        if isinstance(statement, nd.Placed):
            line, m.line = m.line, statement.line
            try:
                _define(m, statement.body, often)
            finally:
                m.line = line
        elif isinstance(statement, nd.If) and is_main(statement.test):
            continue
        elif isinstance(statement, _DEFINING):
            name = _only_name(statement)
            if name is not None and name not in often:
                m.bind(name, _deferred(m, statement, name))
                continue
            m.run_block((statement,))
            m.alive = True


def _only_name(statement: nd.Stmt) -> str | None:
    """The name that a definition or a plain assignment binds."""
    if isinstance(statement, nd.FunctionDef | nd.ClassDef):
        return statement.name
    if isinstance(statement, nd.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        return target.id if isinstance(target, nd.Name) else None
    return None


def _bound_often(body: nd.Block) -> frozenset[str]:
    """Names that more than one statement at the top of a file binds: there the order matters."""
    counts = Counter(name for statement in _flat(body) for name in _names_bound(statement))
    return frozenset(name for name, count in counts.items() if count > 1)


def _flat(body: nd.Block) -> Iterator[nd.Stmt]:
    for statement in body:
        if isinstance(statement, nd.Placed):
            yield from _flat(statement.body)
        elif isinstance(statement, nd.If):
            yield from _flat((*statement.body, *statement.orelse))
        elif isinstance(statement, nd.Try):
            handled = (inner for handler in statement.handlers for inner in handler.body)
            yield from _flat((*statement.body, *handled, *statement.orelse, *statement.final))
        elif isinstance(statement, nd.With | nd.For | nd.While):
            yield from _flat(statement.body)
        else:
            yield statement


def _names_bound(statement: nd.Stmt) -> Iterator[str]:
    if isinstance(statement, nd.FunctionDef | nd.ClassDef):
        yield statement.name
    elif isinstance(statement, nd.Import | nd.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(statement, nd.Assign):
        for target in statement.targets:
            yield from _names_of(target)
    elif isinstance(statement, nd.AnnAssign | nd.AugAssign):
        yield from _names_of(statement.target)


def _names_of(target: nd.Expr) -> Iterator[str]:
    """Names that an assignment to `target` binds or changes."""
    while isinstance(target, nd.Attribute | nd.Subscript | nd.Starred):
        target = target.value
    if isinstance(target, nd.Name):
        yield target.id
    elif isinstance(target, nd.TupleExpr | nd.ListExpr):
        for element in target.elements:
            yield from _names_of(element)


def is_main(test: nd.Expr) -> bool:
    """`__name__ == "__main__"`."""
    return (
        isinstance(test, nd.Compare)
        and isinstance(test.left, nd.Name)
        and test.left.id == "__name__"
        and test.ops == ("==",)
    )
