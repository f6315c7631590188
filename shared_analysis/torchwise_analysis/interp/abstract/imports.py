"""Imports: other files of the project are run when they are first imported, libraries stay names."""

from __future__ import annotations

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
        top, _, rest = alias.name.partition(".")
        wanted = alias.name if alias.asname else top
        found = m.project.find(wanted, m.file)
        module = _enter(m, found)
        if rest and not alias.asname:
            _enter(m, m.project.find(alias.name, m.file))
        value: va.Value = module or va.Library(None, wanted)
        m.bind(alias.asname or top, value)


def import_from(m: Machine, node: nd.ImportFrom) -> None:
    found = _find(m, node, node.module)
    module = _enter(m, found)
    for alias in node.names:
        if alias.name == "*":
            if module is not None:
                _star(m, module)
            continue
        m.bind(alias.asname or alias.name, _imported(m, node, module, alias.name))


def _imported(m: Machine, node: nd.ImportFrom, module: va.ProjectModule | None, name: str) -> va.Value:
    if module is not None:
        value = m.state.get(("v", module.frame, name))
        if value is not None:
            return cast("va.Value", value)
    if module is not None or node.level or node.module:
        inner = _enter(m, _find(m, node, f"{node.module}.{name}" if node.module else name))
        if inner is not None:
            return inner
    if module is not None or node.level:
        return va.unknown(None)
    return va.Library(None, f"{node.module}.{name}" if node.module else name)


def member(m: Machine, module: va.ProjectModule, name: str, node: nd.Node) -> va.Value:
    """`module.name`: a name of the module, or its submodule."""
    value = m.state.get(("v", module.frame, name))
    if value is not None:
        return cast("va.Value", value)
    if module.path.endswith("__init__.py"):
        inner = _enter(m, m.project.find_relative(name, 1, module.path))
        if inner is not None:
            return inner
    return va.unknown(None)


def _find(m: Machine, node: nd.ImportFrom, name: str) -> SourceModule | None:
    if node.level:
        return m.project.find_relative(name, node.level, m.file)
    return m.project.find(name, m.file) if name else None


def _star(m: Machine, module: va.ProjectModule) -> None:
    for key in [k for k in m.state.facts if k[0] == "v" and k[1] == module.frame]:
        name = cast("str", key[2])
        if not name.startswith("_"):
            m.bind(name, cast("va.Value", m.state.get(key)))


def _enter(m: Machine, found: SourceModule | None) -> va.ProjectModule | None:
    """Run the definitions of a project file once; its loops and calls at module level are not ours."""
    if found is None or found.is_library or found.path == m.path:
        return None
    known = m.modules.get(found.path)
    if known is not None:
        return va.ProjectModule(None, found.path, known)
    if len(m.modules) >= m.limits.files or sum(f.name == "<module>" for f in m.frames) > 12:
        m.counts.skipped += 1
        return None
    module = m.project.load(found.path)
    m.loaded[found.path] = module
    if module is None:
        return None
    frame_id = m.fresh_id()
    m.modules[found.path] = frame_id
    frame = Frame(frame_id, (frame_id,), found.path, m.body_facts(()))
    saved = (m.file, m.line, m.loops, m.calls, m.guards, m.scopes, m.forward, m.world)
    m.frames.append(frame)
    m.file, m.line, m.loops, m.guards, m.scopes, m.forward = found.path, 0, (), (), OUTSIDE, None
    try:
        _define(m, module.body)
    finally:
        m.frames.pop()
        m.file, m.line, m.loops, m.calls, m.guards, m.scopes, m.forward, m.world = saved
    m.alive = True
    return va.ProjectModule(None, found.path, frame_id)


def _define(m: Machine, body: nd.Block) -> None:
    for statement in body:
        if isinstance(statement, nd.Placed):
            line, m.line = m.line, statement.line
            try:
                _define(m, statement.body)
            finally:
                m.line = line
        elif isinstance(statement, nd.If) and is_main(statement.test):
            continue
        elif isinstance(statement, _DEFINING):
            m.run_block((statement,))
            m.alive = True


def is_main(test: nd.Expr) -> bool:
    """`__name__ == "__main__"`."""
    return (
        isinstance(test, nd.Compare)
        and isinstance(test.left, nd.Name)
        and test.left.id == "__name__"
        and test.ops == ("==",)
    )
