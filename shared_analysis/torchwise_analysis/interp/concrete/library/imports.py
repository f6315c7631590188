"""Modules of the program: found by name, evaluated name by name.

A module of a library (or of the project) is not executed. When a name in it is asked for, the statement
that binds the name is evaluated, then the top-level statements that change the bound object
(`TABLE.update(...)`, `TABLE["x"] = ...`). A name bound under `if` or `try` means the whole guarded
statement. Star imports are searched by text before anything is parsed. Only the script itself runs from
top to bottom.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, cast

from torchwise_analysis.interp.concrete import statements
from torchwise_analysis.interp.concrete.library import replacements
from torchwise_analysis.interp.concrete.values import MISSING, Frame, ModuleValue, Namespace, Unknown, Value
from torchwise_analysis.interp.core.imports import absolute_module
from torchwise_analysis.names.project import Project, SourceModule
from torchwise_analysis.source import lower_text, nodes

if TYPE_CHECKING:
    from torchwise_analysis.interp.concrete.interpreter import Interpreter

# Texts that run texts, one in the other.
_MAX_TEXTS = 60
_GUARDS = (nodes.If, nodes.Try, nodes.With, nodes.For, nodes.While)


class Imports:
    """All modules of one run. `known` gives the name spaces that stand for libraries."""

    def __init__(self, it: Interpreter) -> None:
        self.it = it
        self.loaded: dict[str, Value] = {}
        self.read: list[str] = []
        self.main_path = ""
        self.scopes: dict[int, LazyScope] = {}
        self._replacements: dict[str, LazyScope | None] = {}
        # modules of libraries for which a text of ours stood in, as they were asked for
        self.replaced: list[str] = []

    def run_main(self, module: nodes.Module) -> ModuleValue:
        """Execute a script as `__main__`."""
        self.main_path = module.path
        main = ModuleValue("__main__", module.path, is_package=False, is_library=False)
        main.names["__name__"] = "__main__"
        main.names["__file__"] = os.path.abspath(module.path)
        self.scopes[id(main)] = scope = LazyScope(self, main, ())
        main.lazy = scope.lookup
        self.loaded["__main__"] = main
        frame = Frame(main, None, 0)
        frame.names = main.names
        statements.run_block(self.it, module.body, frame)
        return main

    def run_text(self, content: str) -> None:
        """Statements of a text in the globals of `__main__`, placed in the file that holds the text."""
        main = self.loaded.get("__main__")
        if not isinstance(main, ModuleValue):
            return
        path = next((one for one in reversed(self.read) if self.it.project.text(one) == content), "<text>")
        lowered = lower_text(path, content)
        inner = ModuleValue("__main__", path, is_package=False, is_library=False)
        inner.names = main.names
        self.scopes[id(inner)] = LazyScope(self, inner, ())
        frame = Frame(inner, None, 0)
        frame.names = main.names
        self.it.depth += 1
        try:
            if self.it.depth > _MAX_TEXTS:
                raise self.it.error("RecursionError", "maximum recursion depth exceeded")
            statements.run_block(self.it, lowered.body, frame)
        finally:
            self.it.depth -= 1

    def find(self, name: str, importer: str) -> Value:
        """The module called `name`; an unknown where it cannot be read."""
        known = self.it.library.known_module(name)
        if known is not None:
            return known
        if name in self.loaded:
            return self.loaded[name]
        source = self.it.project.find(name, importer)
        if source is not None:
            found: Value = self.open(source)
        else:
            found = Unknown(f"module {name}", self.it.origin())
        self.loaded[name] = found
        return found

    def open(self, source: SourceModule) -> Value:
        for value in self.loaded.values():
            if isinstance(value, ModuleValue) and value.path == source.path:
                return value
        lowered = self.it.project.load(source.path)
        if lowered is None:
            return Unknown(f"module {source.name}", self.it.origin())
        self.read.append(source.path)
        if not source.is_library:
            self.it.read_statements(source.path)
        module = ModuleValue(source.name, source.path, source.is_package, source.is_library)
        module.names["__name__"] = source.name
        self.scopes[id(module)] = scope = LazyScope(self, module, lowered.body)
        module.lazy = scope.lookup
        return module

    def text_of(self, name: str) -> str | None:
        """The text of a module that was read in this run."""
        module = self.loaded.get(name)
        return self.it.project.text(module.path) if isinstance(module, ModuleValue) else None

    def replacement(self, name: str) -> LazyScope | None:
        """The scope of a module's replacement text; its names win over the module's own."""
        if name not in self._replacements:
            lowered = replacements.lowered(name)
            scope = None
            if lowered is not None:
                module = ModuleValue(name, lowered.path, is_package=False, is_library=True)
                module.names.update(self.it.library.helpers)
                scope = LazyScope(self, module, lowered.body)
                module.lazy = scope.lookup
                self.scopes[id(module)] = scope
                self.replaced.append(name)
            self._replacements[name] = scope
        return self._replacements[name]

    def submodule(self, owner: ModuleValue, name: str) -> Value:
        """`package.name` where `name` is a file of the package."""
        if not owner.is_package:
            return MISSING
        found = self.find(f"{owner.name}.{name}", owner.path)
        if not isinstance(found, Unknown):
            return found
        if owner.is_library and owner.name.startswith("transformers.models."):
            return self.it.library.transformers.package_name(owner.name, name)
        return MISSING

    def absolute(self, node: nodes.ImportFrom, module: ModuleValue) -> str | None:
        name = module.name
        is_package = module.is_package
        if name == "__main__" and node.level:
            name = self.it.project.describe(module.path).name
        return absolute_module(node.module, node.level, name, is_package)

    def import_from(self, node: nodes.ImportFrom, frame: Frame) -> None:
        name = self.absolute(node, frame.module)
        if name is None:
            raise self.it.error("ImportError", "attempted relative import beyond top-level package")
        source = self.find(name, frame.module.path) if name else MISSING
        for alias in node.names:
            if alias.name == "*":
                self.scope_of(frame.module).stars.append((name, source))
            else:
                value = self.member(name, source, alias.name, frame)
                self.it.bind(alias.asname or alias.name, value, frame)

    def member(self, module_name: str, source: Value, name: str, frame: Frame) -> Value:
        """What `from module_name import name` binds."""
        if isinstance(source, Unknown):
            # a folder without `__init__.py` is a package too: its files are found by their full name
            found = self.find(f"{module_name}.{name}", frame.module.path)
            return Unknown(f"{module_name}.{name}", self.it.origin()) if isinstance(found, Unknown) else found
        if source is not MISSING:
            value = self.it.find_attribute(source, name)
            if value is not MISSING:
                return value
        found = self.find(f"{module_name}.{name}" if module_name else name, frame.module.path)
        if (
            isinstance(found, Unknown)
            and isinstance(source, ModuleValue)
            and not self.has_unknown_star(source)
        ):
            raise self.it.error("ImportError", f"cannot import name '{name}' from '{module_name}'")
        return found

    def scope_of(self, module: ModuleValue) -> LazyScope:
        return self.scopes[id(module)]

    def has_unknown_star(self, module: ModuleValue) -> bool:
        scope = self.scopes.get(id(module))
        return scope is not None and any(isinstance(source, Unknown) for _, source in scope.stars)

    def close(self) -> None:
        for module in self.loaded.values():
            if isinstance(module, ModuleValue):
                module.names.clear()
                module.lazy = None
        self.loaded.clear()
        self.scopes.clear()
        for scope in self._replacements.values():
            if scope is not None:
                scope.module.names.clear()
                scope.module.lazy = None
        self._replacements.clear()


class LazyScope:
    """The top level of one file: which statements bind a name, which change what it is bound to."""

    def __init__(self, imports: Imports, module: ModuleValue, body: nodes.Block) -> None:
        self.imports = imports
        self.module = module
        self.stars: list[tuple[str, Value]] = []
        self.is_replacement = module.path.startswith("<")
        # how many of a name's binders are left to a lookup that happens while the later ones run
        self._left: dict[str, int] = {}
        outline = _kept_outline(imports.it.project, body, module.is_library, self.is_replacement)
        self.binders = outline.binders
        self._touchers = dict(outline.touchers)
        self._pending_stars = list(outline.stars)
        self._registrations = list(outline.registrations)

    def lookup(self, name: str) -> Value:
        """The value of a global name, or MISSING."""
        names = self.module.names
        if name in names:
            return names[name]
        self.register()
        if self.module.is_library and not self.is_replacement:
            for replaced in (self.module.name, f"{self.module.name.partition('.')[0]}.*"):
                scope = self.imports.replacement(replaced)
                if scope is not None and name in scope.binders:
                    names[name] = scope.lookup(name)
                    return names[name]
        binders = self.binders.get(name, [])
        left = self._left.get(name, len(binders))
        for position in range(left - 1, -1, -1):
            self._left[name] = position
            try:
                self._run(*binders[position])
            finally:
                self._left[name] = left
            if name in names:
                self._touch(name, binders[position])
                return names[name]
        if left < len(binders):
            return MISSING
        found = self._from_stars(name)
        if found is MISSING or self.module.is_library or name not in self._touchers:
            return found
        names[name] = found
        for statement, base in self._touchers.pop(name):
            self._run(statement, base)
        return names[name]

    def register(self) -> None:
        """Run what the top level puts into registries; what does not import for its names, does for this."""
        while self._registrations:
            self._run(*self._registrations.pop(0))

    def entries(self, name: str, wanted: Callable[[Value], bool]) -> dict[Value, Value]:
        """The items of the dictionary display bound to `name` whose keys are wanted; no other is evaluated.

        The display may be an argument of a call (`name = make({...})`).
        """
        found: dict[Value, Value] = {}
        it = self.imports.it
        for statement, base in self.binders.get(name, ()):
            value = getattr(statement, "value", None)
            if isinstance(value, nodes.Call) and value.args:
                value = value.args[0]
            frame = Frame(self.module, None, base)
            frame.names = self.module.names
            if isinstance(value, nodes.Comprehension):
                made = it.as_mapping(it.evaluate(value, frame))
                found.update({key: item for key, item in made.items() if wanted(key)})
            if not isinstance(value, nodes.DictExpr):
                continue
            for key, item in zip(value.keys, value.values, strict=True):
                if isinstance(key, nodes.Constant) and wanted(key.value):
                    found[key.value] = it.evaluate(item, frame)
        return found

    def bound_names(self) -> list[str]:
        """Names that the text binds, those of star imports included."""
        names = list(self.binders)
        self._from_stars("")
        for position, (absolute, source) in enumerate(self.stars):
            if source is MISSING:
                source = self.imports.find(absolute, self.module.path)
                self.stars[position] = (absolute, source)
            if isinstance(source, ModuleValue):
                inner = self.imports.scopes.get(id(source))
                if inner is not None and inner is not self:
                    names += [n for n in inner.bound_names() if not n.startswith("_")]
        return names

    def _touch(self, name: str, binder: tuple[nodes.Stmt, int]) -> None:
        after = binder[1] + binder[0].span.line
        for statement, base in self._touchers.pop(name, ()):
            if base + statement.span.line > after:
                self._run(statement, base)

    def _run(self, statement: nodes.Stmt, base: int) -> None:
        frame = Frame(self.module, None, base)
        frame.names = self.module.names
        it = self.imports.it
        outer = it.world.ledger.origin
        statements.STATEMENTS[statement.__class__](it, statement, frame)
        it.world.ledger.origin = outer

    def _from_stars(self, name: str) -> Value:
        while self._pending_stars:
            node = self._pending_stars.pop(0)
            absolute = self.imports.absolute(node, self.module)
            if absolute is not None:
                self.stars.append((absolute, MISSING))
        if name.startswith("_"):
            return MISSING
        for position, (absolute, source) in enumerate(self.stars):
            if source is MISSING:
                if not self._may_define(absolute, name):
                    continue
                source = self.imports.find(absolute, self.module.path)
                self.stars[position] = (absolute, source)
            if isinstance(source, (ModuleValue, Namespace)):
                value = self.imports.it.find_attribute(source, name)
                if value is not MISSING:
                    return value
        return MISSING

    def _may_define(self, absolute: str, name: str) -> bool:
        """Whether the text of a module can define `name`, before it is parsed."""
        project = self.imports.it.project
        source = project.find(absolute, self.module.path)
        if source is None or self.imports.it.library.known_module(absolute) is not None:
            return True
        text = project.text(source.path)
        return text is None or name in text or "import *" in text


_Statements = list[tuple[nodes.Stmt, int]]


class _Outline:
    """What the top level of a text binds and changes: statements, each with the line it is placed at."""

    __slots__ = ("binders", "registrations", "stars", "touchers")

    def __init__(self) -> None:
        self.binders: dict[str, _Statements] = {}
        self.touchers: dict[str, _Statements] = {}
        self.stars: list[nodes.ImportFrom] = []
        # calls at the top level that put what the module defines into a registry elsewhere
        self.registrations: _Statements = []


# Texts whose outlines are kept. Each keeps its text's nodes.
_MOST_OUTLINES = 256


def _kept_outline(project: Project, body: nodes.Block, is_library: bool, is_replacement: bool) -> _Outline:
    """The outline of a text. Kept: every run reads the same files, and most never change."""
    kept = cast("dict[object, tuple[nodes.Block, _Outline]]", project.derived.setdefault("outlines", {}))
    key = (id(body), is_library, is_replacement)
    known = kept.get(key)
    if known is None:
        if len(kept) >= _MOST_OUTLINES:
            kept.clear()
        known = kept[key] = body, _outline(body, is_library, is_replacement)
    return known[1]


def _outline(body: nodes.Block, is_library: bool, is_replacement: bool) -> _Outline:
    found = _Outline()
    for statement, base in _top_level(body, 0):
        _index(found, statement, base, is_library, is_replacement)
    return found


def _index(found: _Outline, statement: nodes.Stmt, base: int, is_library: bool, is_replacement: bool) -> None:
    if isinstance(statement, nodes.ImportFrom) and any(a.name == "*" for a in statement.names):
        found.stars.append(statement)
        return
    if isinstance(statement, nodes.If) and _is_for_type_checkers(statement.test):
        # the lazy top level of a package: the imports it shows to type checkers are the ones it makes
        for inner in _imports_below(statement):
            for alias in inner.names:
                single = nodes.ImportFrom(inner.span, inner.module, (alias,), inner.level)
                found.binders.setdefault(alias.asname or alias.name, []).append((single, base))
        return
    if isinstance(statement, _GUARDS):
        found.stars.extend(_stars_below(statement))
    for name in dict.fromkeys(_bound_names(statement)):
        found.binders.setdefault(name, []).append((statement, base))
    takes_effect = not is_replacement and _takes_effect(statement, found.binders, is_library)
    if takes_effect or _is_registration(statement):
        found.registrations.append((statement, base))
    touched = _touched_name(statement)
    if touched:
        found.touchers.setdefault(touched, []).append((statement, base))


def _takes_effect(statement: nodes.Stmt, binders: Collection[str], is_library: bool) -> bool:
    """A project's definition that a decorator registers, or a call of a function defined above it.

    Of a library only calls of functions that say that they register something.
    """
    if is_library:
        value = statement.value if isinstance(statement, nodes.ExprStmt) else None
        is_registering = isinstance(value, nodes.Call) and "register" in _last_name(value.func)
        return is_registering and _last_name(cast(nodes.Call, value).func) in binders
    if isinstance(statement, (nodes.FunctionDef, nodes.ClassDef)):
        return any("regist" in _last_name(decorator).lower() for decorator in statement.decorators)
    if isinstance(statement, nodes.ExprStmt) and isinstance(statement.value, nodes.Call):
        function = statement.value.func
        return isinstance(function, nodes.Name) and function.id in binders
    return False


def _top_level(body: nodes.Block, base: int) -> Iterator[tuple[nodes.Stmt, int]]:
    for statement in body:
        if isinstance(statement, nodes.Placed):
            yield from _top_level(statement.body, statement.line)
        else:
            yield statement, base


def _bound_names(statement: nodes.Stmt) -> Iterator[str]:
    """Names that a top-level statement may bind."""
    if isinstance(statement, (nodes.FunctionDef, nodes.ClassDef, nodes.TypeAliasStmt)):
        yield statement.name
    elif isinstance(statement, nodes.Import):
        for alias in statement.names:
            yield alias.asname or alias.name.split(".")[0]
    elif isinstance(statement, nodes.ImportFrom):
        for alias in statement.names:
            if alias.name != "*":
                yield alias.asname or alias.name
    elif isinstance(statement, nodes.Assign):
        for target in statement.targets:
            yield from _target_names(target)
    elif isinstance(statement, (nodes.AnnAssign, nodes.AugAssign)):
        if not isinstance(statement, nodes.AnnAssign) or statement.value is not None:
            yield from _target_names(statement.target)
    else:
        if isinstance(statement, nodes.For):
            yield from _target_names(statement.target)
        for block in _blocks(statement):
            for inner, _ in _top_level(block, 0):
                yield from _bound_names(inner)


def _blocks(statement: nodes.Stmt) -> Iterator[nodes.Block]:
    if isinstance(statement, (nodes.If, nodes.For, nodes.While)):
        yield statement.body
        yield statement.orelse
    elif isinstance(statement, nodes.With):
        yield statement.body
    elif isinstance(statement, nodes.Try):
        yield statement.body
        for handler in statement.handlers:
            yield handler.body
        yield statement.orelse
        yield statement.final


def _target_names(target: nodes.Expr) -> Iterator[str]:
    if isinstance(target, nodes.Name):
        yield target.id
    elif isinstance(target, (nodes.TupleExpr, nodes.ListExpr)):
        for element in target.elements:
            yield from _target_names(element)
    elif isinstance(target, nodes.Starred):
        yield from _target_names(target.value)


def _is_for_type_checkers(test: nodes.Expr) -> bool:
    if isinstance(test, nodes.BoolOp):
        return any(_is_for_type_checkers(value) for value in test.values)
    return isinstance(test, nodes.Name) and test.id == "TYPE_CHECKING"


def _imports_below(statement: nodes.Stmt) -> Iterator[nodes.ImportFrom]:
    for block in _blocks(statement):
        for inner, _ in _top_level(block, 0):
            if isinstance(inner, nodes.ImportFrom):
                yield inner
            yield from _imports_below(inner)


def _stars_below(statement: nodes.Stmt) -> Iterator[nodes.ImportFrom]:
    for block in _blocks(statement):
        for inner, _ in _top_level(block, 0):
            if isinstance(inner, nodes.ImportFrom) and any(a.name == "*" for a in inner.names):
                yield inner
            yield from _stars_below(inner)


def _is_registration(statement: nodes.Stmt) -> bool:
    """`register_block("name", Block)`: a call for its effect alone, by a function that says so.

    Kinds of transformers' cache layers register themselves as they are defined, by their `_layer_type`.
    """
    if isinstance(statement, nodes.ClassDef):
        return any("_layer_type" in _bound_names(inner) for inner, _ in _top_level(statement.body, 0))
    if not isinstance(statement, nodes.ExprStmt) or not isinstance(statement.value, nodes.Call):
        return False
    function = statement.value.func
    return (
        isinstance(function, nodes.Name)
        and function.id.startswith("register_")
        and len(statement.value.args) + len(statement.value.keywords) > 1
    )


def _touched_name(statement: nodes.Stmt) -> str:
    """The global whose object an expression statement or item assignment changes."""
    if isinstance(statement, nodes.ExprStmt) and isinstance(statement.value, nodes.Call):
        function = statement.value.func
        if isinstance(function, nodes.Attribute):
            return _root_name(function.value)
        if "register" in _last_name(function) and statement.value.args:
            # `_register_all(REGISTRY)` fills what it is given
            return _root_name(statement.value.args[0])
    if isinstance(statement, nodes.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, (nodes.Subscript, nodes.Attribute)):
            return _root_name(target.value)
    return ""


def _last_name(decorator: nodes.Expr) -> str:
    """`register` of `@a.register` and of `@a.register("x")`."""
    if isinstance(decorator, nodes.Call):
        decorator = decorator.func
    if isinstance(decorator, nodes.Attribute):
        return decorator.attr
    return decorator.id if isinstance(decorator, nodes.Name) else ""


def _root_name(owner: nodes.Expr) -> str:
    """`a` of `a.b.c` and `a["b"].c`."""
    while isinstance(owner, (nodes.Subscript, nodes.Attribute)):
        owner = owner.value
    return owner.id if isinstance(owner, nodes.Name) else ""
