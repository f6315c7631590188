"""What can be read off a function without running it; computed once per function body."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar, cast

from torchwise_analysis.source import nodes as nd
from torchwise_analysis.source.children import children_reversed

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class BodyFacts:
    """Facts of one body (nested functions included in `names`, excluded elsewhere).

    uses: attributes taken of each name. called: names that are called. iterated: names that loops walk over.
    names: every name and attribute.
    repeated: tests that occur at least twice, as text; looped: those met again in every turn of a loop.
    size: number of nodes. yields: is a generator.
    raises_only: does nothing but raise. is_stub: does that or nothing at all. keeps: assigns attributes or
    changes something in place.
    """

    uses: dict[str, frozenset[str]]
    called: frozenset[str]
    iterated: frozenset[str]
    names: frozenset[str]
    repeated: frozenset[str]
    looped: frozenset[str]
    size: int
    raises_only: bool
    keeps: bool
    is_stub: bool


@dataclass(frozen=True, slots=True)
class LoopFacts:
    """window: a test in the body looks at a counter; has_inner: the body holds a loop. turns: how often the
    body is run where its number of turns is not known.

    repeats: turns are alike, their number is only compared. draws: `next` is called. strides: over a
    range with a step.
    carried: what one turn hands on to the next (`seen += len(x)`), and what is computed from that.
    resets: what the body sets back to a constant (`running = 0`), in inner loops aside.
    uses_gradients: the body takes gradients for what they are, not for their size alone.
    """

    window: bool
    has_inner: bool
    repeats: bool
    draws: bool
    carried: frozenset[str]
    resets: frozenset[str]
    strides: bool
    turns: int
    uses_gradients: bool


def children(node: nd.Node) -> list[nd.Node]:
    """Direct sub-nodes in source order."""
    return children_reversed(node)[::-1]


def walk(root: nd.Node, into_functions: bool = True) -> Iterator[nd.Node]:
    """The node and all below, without recursion."""
    todo: list[nd.Node] = [root]
    while todo:
        node = todo.pop()
        yield node
        if into_functions or node is root or not isinstance(node, (nd.FunctionDef, nd.Lambda, nd.ClassDef)):
            todo += children_reversed(node)


_KEEPING = frozenset(["append", "extend", "insert", "add", "update", "setdefault", "appendleft"])


class StaticCache:
    """Static facts by node, shared by the runs of one project. Holds the nodes, so ids stay theirs."""

    __slots__ = ("_answers", "_bodies", "_loops", "_mentions", "_strides")

    def __init__(self) -> None:
        self._bodies: dict[int, tuple[nd.Block, BodyFacts]] = {}
        self._loops: dict[int, tuple[nd.For | nd.While, LoopFacts]] = {}
        self._mentions: dict[str, tuple[nd.Module, Mentions]] = {}
        self._strides: dict[int, tuple[nd.ClassDef, bool]] = {}
        self._answers: dict[tuple[str, str], tuple[nd.Module, Any]] = {}

    def body(self, body: nd.Block) -> BodyFacts:
        found = self._bodies.get(id(body))
        if found is None:
            if len(self._bodies) > _CACHED:
                self._bodies.clear()
            found = self._bodies[id(body)] = (body, body_facts(body))
        return found[1]

    def loop(self, loop: nd.For | nd.While) -> LoopFacts:
        found = self._loops.get(id(loop))
        if found is None:
            if len(self._loops) > _CACHED:
                self._loops.clear()
            found = self._loops[id(loop)] = (loop, loop_facts(loop))
        return found[1]

    def bound(self, most: int) -> None:
        """Forget all bodies once they are more: to be called where source is edited, as each version of a
        body under edit is a body of its own."""
        if len(self._bodies) + len(self._loops) + len(self._strides) > most:
            self._bodies.clear()
            self._loops.clear()
            self._strides.clear()

    def strides(self, cls: nd.ClassDef) -> bool:
        """Does the class take every n-th thing (`xs[k::n]`, `i % n == k`), with n and k that it was told?"""
        found = self._strides.get(id(cls))
        if found is None:
            found = self._strides[id(cls)] = (cls, any(_is_stride(node) for node in walk(cls)))
        return found[1]

    def mentions(self, module: nd.Module) -> Mentions:
        found = self._mentions.get(module.path)
        if found is None or found[0] is not module:
            found = self._mentions[module.path] = (module, mentions_of(module.body))
        return found[1]

    def once(self, module: nd.Module, question: str, answer: Callable[[nd.Module], R]) -> R:
        """The answer to a question about a module, found once."""
        key = (module.path, question)
        found = self._answers.get(key)
        if found is None or found[0] is not module:
            found = self._answers[key] = (module, answer(module))
        return cast("R", found[1])


_CACHED = 20_000


@dataclass(frozen=True, slots=True)
class Mentions:
    """Names that each function or class of a module mentions, and the module's import statements."""

    names: dict[str, frozenset[str]]
    imports: tuple[nd.Import | nd.ImportFrom, ...]


@dataclass(frozen=True, slots=True)
class Said:
    """What a piece of source says: the names in it, those in each function or class that it defines, names
    that it calls or hands to a call (whoever got a function calls it), and its import statements."""

    names: frozenset[str]
    by_definition: dict[str, frozenset[str]]
    called: frozenset[str]
    imports: tuple[nd.Import | nd.ImportFrom, ...]


def mentions_of(body: nd.Block) -> Mentions:
    """What the definitions among these statements mention."""
    said = said_in(body)
    return Mentions(said.by_definition, said.imports)


# Kinds of nodes that say something besides what is below them: one question less than one for each kind.
_SAYING = frozenset[type]([nd.Attribute, nd.Call, nd.Import, nd.ImportFrom, nd.FunctionDef, nd.ClassDef])


def said_in(nodes: Iterable[nd.Node]) -> Said:
    """What these nodes say, all that is below them included."""
    whole: set[str] = set()
    called: set[str] = set()
    by_definition: dict[str, set[str]] = {}
    imports: list[nd.Import | nd.ImportFrom] = []
    inside: tuple[set[str], ...] = (whole,)
    todo: list[nd.Node | None] = [*nodes]  # None: a definition ends
    todo.reverse()
    while todo:
        node = todo.pop()
        if isinstance(node, nd.Name):  # half of all nodes, and nothing is below
            for one in inside:
                one.add(node.id)
            continue
        if node is None:
            inside = inside[:-1]
            continue
        if node.__class__ not in _SAYING:
            todo += children_reversed(node)
            continue
        if isinstance(node, nd.Attribute):
            for one in inside:
                one.add(node.attr)
        elif isinstance(node, nd.Call):
            func = node.func
            if isinstance(func, nd.Name):
                called.add(func.id)
            elif isinstance(func, nd.Attribute):
                called.add(func.attr)
            called.update(arg.id for arg in node.args if isinstance(arg, nd.Name))
        elif isinstance(node, (nd.Import, nd.ImportFrom)):
            imports.append(node)
        elif isinstance(node, (nd.FunctionDef, nd.ClassDef)):
            inside = (*inside, by_definition.setdefault(node.name, set()))
            todo.append(None)
        todo += children_reversed(node)
    return Said(
        frozenset(whole),
        {name: frozenset(found) for name, found in by_definition.items()},
        frozenset(called),
        tuple(imports),
    )


def _is_stride(node: nd.Node) -> bool:
    if isinstance(node, nd.Slice):
        return _is_told(node.step) and _is_told(node.lower)
    if isinstance(node, nd.Compare) and node.ops == ("==",) and isinstance(node.left, nd.Binary):
        return node.left.op == "%" and _is_told(node.left.right) and _is_told(node.comparators[0])
    return False


def _is_told(node: nd.Expr | None) -> bool:
    return isinstance(node, (nd.Name, nd.Attribute))


_WALKING = frozenset(["enumerate", "zip", "tqdm", "iter", "islice", "cycle", "trange", "track"])


def _walked_over(node: nd.Expr) -> set[str]:
    """`loader` in `enumerate(tqdm(loader))`."""
    if isinstance(node, nd.Name):
        return {node.id}
    if not isinstance(node, nd.Call) or not isinstance(node.func, (nd.Name, nd.Attribute)):
        return set()
    last = node.func.id if isinstance(node.func, nd.Name) else node.func.attr
    return {name for one in node.args for name in _walked_over(one)} if last in _WALKING else set()


def outer_facts(body: nd.Block) -> BodyFacts:
    """Facts of the code of a module or class itself, without the functions and classes defined in it."""
    return body_facts(tuple(s for s in _flatten(body) if not isinstance(s, (nd.FunctionDef, nd.ClassDef))))


# Kinds of nodes that tell a fact of a body.
_TELLING = frozenset[type](
    [nd.Attribute, nd.Call, nd.Assign, nd.AugAssign, nd.If, nd.IfExp, nd.For, nd.While]
)


def body_facts(body: nd.Block) -> BodyFacts:
    """Facts of the body of a function, nested functions included."""
    uses: dict[str, set[str]] = {}
    called: set[str] = set()
    iterated: set[str] = set()
    names: set[str] = set()
    branches: list[nd.If | nd.IfExp] = []
    looped: set[str] = set()
    size = 0
    keeps = False
    todo: list[nd.Node] = list(body)
    while todo:
        node = todo.pop()
        size += 1
        if isinstance(node, nd.Name):  # half of all nodes, and nothing is below
            names.add(node.id)
            continue
        todo += children_reversed(node)
        if node.__class__ not in _TELLING:
            continue
        if isinstance(node, nd.Attribute):
            names.add(node.attr)
            if isinstance(node.value, nd.Name):
                uses.setdefault(node.value.id, set()).add(node.attr)
        elif isinstance(node, nd.Call):
            if isinstance(node.func, nd.Name):
                called.add(node.func.id)
                if node.func.id in _WALKING:
                    iterated |= _walked_over(node)
            elif isinstance(node.func, nd.Attribute):
                keeps = keeps or node.func.attr in _KEEPING or node.func.attr.endswith("_")
        elif isinstance(node, (nd.Assign, nd.AugAssign)):
            targets = node.targets if isinstance(node, nd.Assign) else (node.target,)
            keeps = keeps or any(isinstance(t, (nd.Attribute, nd.Subscript)) for t in targets)
        elif isinstance(node, (nd.If, nd.IfExp)):
            branches.append(node)
        elif isinstance(node, (nd.For, nd.While)):
            looped |= _looped_tests(node)
            if isinstance(node, nd.For):
                iterated |= _walked_over(node.iter)
    switched = frozenset(name for node in branches for name in _switched(node))
    plain = [s for s in _flatten(body) if not _is_docstring(s)]
    return BodyFacts(
        uses={name: frozenset(attributes) for name, attributes in uses.items()},
        called=frozenset(called),
        iterated=frozenset(iterated),
        names=frozenset(names),
        repeated=_repeated(branches, switched),
        looped=frozenset(looped),
        size=size,
        keeps=keeps,
        raises_only=len(plain) == 1 and isinstance(plain[0], nd.Raise),
        is_stub=all(isinstance(s, (nd.Pass, nd.Raise)) or _is_ellipsis(s) for s in plain),
    )


def _is_ellipsis(statement: nd.Stmt) -> bool:
    value = statement.value if isinstance(statement, nd.ExprStmt) else None
    return isinstance(value, nd.Constant) and isinstance(value.value, nd.EllipsisType)


def _repeated(branches: Sequence[nd.If | nd.IfExp], switched: frozenset[str]) -> frozenset[str]:
    """Tests that guard an effect, and do so twice, or decide somewhere else whether the rest is run."""
    texts = [tuple(test_texts(node.test)) for node in branches]
    often = {text for text, count in Counter(chain.from_iterable(texts)).items() if count > 1}
    tests: Counter[str] = Counter()
    leaving: Counter[str] = Counter()
    for node, given in zip(branches, texts, strict=True):
        if often.isdisjoint(given):
            continue
        if _guards_effect(node, switched):
            tests.update(given)
        elif isinstance(node, nd.If) and _leaves(node):
            leaving.update(given)
    return frozenset(text for text, count in tests.items() if count + leaving[text] > 1)


def _leaves(node: nd.If) -> bool:
    """Does a branch end the function?"""
    ends = (list(_flatten(branch))[-1:] for branch in (node.body, node.orelse))
    return any(isinstance(last, nd.Return) for end in ends for last in end)


def _looped_tests(loop: nd.For | nd.While) -> set[str]:
    """Tests directly in a loop of which both sides do what rules follow: a turn must not mix them."""
    found: set[str] = set()
    todo: list[nd.Node] = list(loop.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (nd.Placed, nd.With, nd.Try)):
            todo.extend(children(node))
        elif isinstance(node, nd.If) and node.orelse and _touches_gradients(node.body, node.orelse):
            found.update(test_texts(node.test))
    return found


def _touches_gradients(*branches: nd.Block) -> bool:
    return all(
        any(isinstance(n, nd.Attribute) and n.attr in _GRADIENTS for part in branch for n in walk(part))
        for branch in branches
    )


_GRADIENTS = frozenset(["backward", "step", "zero_grad"])

# What makes it matter that two tests of one flag agree: they guard what rules follow.
_WORLDLY = frozenset(
    [
        "backward",
        "step",
        "zero_grad",
        "eval",
        "no_grad",
        "inference_mode",
        "set_grad_enabled",
        "enable_grad",
        "autocast",
        "scale",
        "unscale_",
        "clip_grad_norm_",
        "clip_grad_value_",
        "DistributedSampler",
        "DistributedDataParallel",
        "DDP",
        "no_sync",
        "grad",
        "requires_grad",
        "softmax",
        "sigmoid",
        "log_softmax",
        "accumulate",
    ]
)


def _switched(node: nd.If | nd.IfExp) -> frozenset[str]:
    """Names that a test gives to one function or another: imported or defined on both sides."""
    if isinstance(node, nd.IfExp) or not node.orelse:
        return frozenset()
    return _bound_functions(node.body) & _bound_functions(node.orelse)


def _bound_functions(body: nd.Block) -> frozenset[str]:
    found: set[str] = set()
    for statement in _flatten(body):
        if isinstance(statement, nd.FunctionDef):
            found.add(statement.name)
        elif isinstance(statement, nd.ImportFrom):
            found.update(alias.asname or alias.name for alias in statement.names)
    return frozenset(found)


def _guards_effect(node: nd.If | nd.IfExp, switched: frozenset[str]) -> bool:
    branches: tuple[nd.Node, ...] = (
        (*node.body, *node.orelse) if isinstance(node, nd.If) else (node.body, node.orelse)
    )
    for branch in branches:
        for inner in walk(branch):
            if isinstance(inner, nd.Attribute) and inner.attr in _WORLDLY:
                return True
            if isinstance(inner, nd.Name) and (inner.id in _WORLDLY or inner.id in switched):
                return True
            if isinstance(inner, nd.Continue):
                return True
    return bool(switched & _switched(node)) if switched else False


def loop_facts(loop: nd.For | nd.While) -> LoopFacts:
    below = list(walk(loop, into_functions=False))
    counters, has_inner, is_long = _counters(loop, below), False, False
    window = draws = False
    tests: set[int] = set()
    for node in below:
        draws = draws or (isinstance(node, nd.Call) and text_of(node.func) == "next")
        if node is not loop and isinstance(node, (nd.For, nd.While)):
            has_inner = True
            is_long = is_long or not _is_light(node)
        elif isinstance(node, nd.Attribute) and node.attr == "accumulate":
            window = True
        elif isinstance(node, (nd.If, nd.IfExp)):
            if _tests_counter(node.test, counters):
                tests.update(id(n) for n in walk(node.test))
                window = window or _opens_window(node)
        elif isinstance(node, nd.Binary) and node.op == "%" and id(node) not in tests:
            window = window or not counters.isdisjoint(names_in(node.left))
    repeats = isinstance(loop, nd.For) and isinstance(loop.target, nd.Name) and _repeats(loop, loop.target.id)
    return LoopFacts(
        window,
        has_inner,
        repeats,
        draws,
        _carried(loop, below),
        _resets(loop),
        _strides(loop),
        turns=(3 if is_long else 5) if window else 2,
        uses_gradients=_uses_gradients(below),
    )


# What reads off gradients how large they are, or whether they are sound.
_SIZES = frozenset(
    ["norm", "vector_norm", "clip_grad_norm", "sum", "mean", "max", "min", "item", "std", "var", "isnan"]
)
_SIZES_OF = _SIZES | {"isfinite", "isinf", "print", "size", "numel", "dim", "any", "all"}


def _uses_gradients(below: list[nd.Node]) -> bool:
    """Does any `.grad` go somewhere, beyond tests for None, sizes, and changes of the gradients in place?"""
    gradients = {id(n) for n in below if isinstance(n, nd.Attribute) and n.attr == "grad"}
    if not gradients:
        return False
    for node in below:
        if isinstance(node, nd.Compare):
            gradients.discard(id(node.left))
        elif isinstance(node, (nd.Assign, nd.AugAssign)):
            targets = node.targets if isinstance(node, nd.Assign) else (node.target,)
            gradients -= {id(n) for target in targets for n in walk(target)}
        elif isinstance(node, nd.Call) and isinstance(node.func, (nd.Name, nd.Attribute)):
            name = node.func.id if isinstance(node.func, nd.Name) else node.func.attr
            if name in _SIZES_OF or name.endswith("_"):
                gradients -= {id(n) for n in walk(node)}
    return bool(gradients)


def _is_light(loop: nd.For | nd.While) -> bool:
    """Does it call nothing, as one over parameter groups that sets their rates?"""
    return not any(isinstance(node, nd.Call) for statement in loop.body for node in walk(statement))


def _strides(loop: nd.For | nd.While) -> bool:
    over = loop.iter if isinstance(loop, nd.For) else None
    return isinstance(over, nd.Call) and text_of(over.func) == "range" and len(over.args) == 3


def _resets(loop: nd.For | nd.While) -> frozenset[str]:
    """Names that the body, inner loops aside, sets to a constant."""
    found: set[str] = set()
    todo: list[nd.Node] = list(loop.body)
    while todo:
        node = todo.pop()
        if isinstance(node, nd.Assign) and isinstance(node.value, nd.Constant):
            found.update(name for target in node.targets for name in _bound_names(target))
        elif not isinstance(node, (nd.Expr, nd.For, nd.While, nd.FunctionDef, nd.ClassDef)):
            todo += children_reversed(node)
    return frozenset(found)


def _carried(loop: nd.For | nd.While, below: list[nd.Node]) -> frozenset[str]:
    """Names that the body computes from what they were in the turn before, and what follows from them."""
    found: set[str] = set()
    bound: list[tuple[str, set[str]]] = []
    for node in below:
        if isinstance(node, nd.AugAssign) and node.op in ("+", "-"):
            found.add(text_of(node.target) or "")
        elif isinstance(node, nd.Assign):
            bound += [
                (name, names_in(node.value)) for target in node.targets for name in _bound_names(target)
            ]
        elif isinstance(node, nd.For) and node is not loop:
            bound += _walked(node.target, node.iter)
    found.update(name for name, sources in bound if name in sources)
    size = -1
    while size != len(found):
        size = len(found)
        found.update(name for name, sources in bound if not found.isdisjoint(sources))
    return frozenset(found - {""})


def _walked(target: nd.Expr, over: nd.Expr) -> list[tuple[str, set[str]]]:
    """Names that a loop binds, with the names that each of them comes from."""
    if isinstance(over, nd.Call) and isinstance(target, nd.TupleExpr):
        how, parts = text_of(over.func), target.elements
        if how == "enumerate" and len(parts) == 2 and over.args:
            return _walked(parts[1], over.args[0])
        if how == "zip" and len(parts) == len(over.args):
            return [pair for part, one in zip(parts, over.args, strict=True) for pair in _walked(part, one)]
    return [(name, names_in(over)) for name in _bound_names(target)]


def _bound_names(target: nd.Expr) -> list[str]:
    if isinstance(target, (nd.TupleExpr, nd.ListExpr)):
        return [name for element in target.elements for name in _bound_names(element)]
    text = text_of(target)
    return [] if text is None else [text]


def _repeats(loop: nd.For, counter: str) -> bool:
    """Is the counter only compared and shown?"""
    todo: list[nd.Node] = list(loop.body)
    while todo:
        node = todo.pop()
        if isinstance(node, nd.Name) and node.id == counter:
            return False
        is_shown = isinstance(node, nd.Call) and text_of(node.func) == "print"
        if not (is_shown or isinstance(node, (nd.Compare, nd.FormattedString))):
            todo += children_reversed(node)
    return True


def _counters(loop: nd.For | nd.While, below: list[nd.Node]) -> frozenset[str]:
    """Names that count the turns of this loop: its targets, and what its body adds to."""
    found: set[str] = set()
    if isinstance(loop, nd.For):
        found.update(names_in(loop.target))
    for node in below:
        if isinstance(node, nd.AugAssign) and node.op in ("+", "-"):
            text = text_of(node.target)
            if text is not None:
                found.add(text)
        elif isinstance(node, nd.Assign) and moves_itself(node):
            found.update(_bound_names(node.targets[0]))
    return frozenset(found)


def moves_itself(node: nd.Assign) -> bool:
    """`step = step + 1`"""
    value = node.value
    if len(node.targets) != 1 or not isinstance(value, nd.Binary) or value.op not in ("+", "-"):
        return False
    text = text_of(node.targets[0])
    sides = (value.left, value.right) if value.op == "+" else (value.left,)
    return text is not None and any(text_of(side) == text for side in sides)


def names_in(node: nd.Expr) -> set[str]:
    """Dotted names, plain names and what they hold under a constant key, in an expression."""
    found: set[str] = set()
    for inner in walk(node):
        if isinstance(inner, (nd.Name, nd.Attribute, nd.Subscript)):
            text = text_of(inner)
            if text is not None:
                found.add(text)
    return found


def called_in(node: nd.Node) -> set[str]:
    """Last names of the functions and methods that are called below a node."""
    funcs = [inner.func for inner in walk(node) if isinstance(inner, nd.Call)]
    names = {func.id for func in funcs if isinstance(func, nd.Name)}
    return names | {func.attr for func in funcs if isinstance(func, nd.Attribute)}


# A test of a counter opens a window when what it guards belongs to the optimisation loop.
_WINDOW_PARTS = (
    "step",
    "grad",
    "zero",
    "update",
    "optim",
    "sync",
    "eval",
    "valid",
    "test",
    "backward",
    "train",
    "flush",
)


def _opens_window(node: nd.If | nd.IfExp) -> bool:
    branches: tuple[nd.Node, ...]
    branches = (*node.body, *node.orelse) if isinstance(node, nd.If) else (node.body, node.orelse)
    for branch in branches:
        for inner in walk(branch):
            if isinstance(inner, nd.Continue):
                return True
            name = (
                inner.attr
                if isinstance(inner, nd.Attribute)
                else inner.id
                if isinstance(inner, nd.Name)
                else ""
            )
            if name and any(part in name.lower() for part in _WINDOW_PARTS):
                return True
    return False


def test_texts(test: nd.Expr) -> Iterator[str]:
    """Identities of the stable tests in a condition."""
    if isinstance(test, nd.BoolOp):
        for value in test.values:
            yield from test_texts(value)
        return
    text = text_of(test)
    if text is not None:
        yield text


def text_of(node: nd.Expr) -> str | None:
    """Textual identity of a stable expression: dotted names, constant subscripts and comparisons."""
    if isinstance(node, nd.Name):
        return node.id
    if isinstance(node, nd.Attribute):
        base = text_of(node.value)
        return base and f"{base}.{node.attr}"
    if isinstance(node, nd.Subscript) and isinstance(node.index, nd.Constant):
        base = text_of(node.value)
        return base and f"{base}[{node.index.value!r}]"
    if isinstance(node, nd.Unary) and node.op == "not":
        return text_of(node.operand)
    if isinstance(node, nd.Compare) and len(node.ops) == 1 and is_literal(node.comparators[0]):
        base = text_of(node.left)
        return base and f"{base}?"
    return None


def is_literal(node: nd.Expr) -> bool:
    """A constant, or a list, tuple or set of constants as it is written after `in`."""
    if isinstance(node, (nd.ListExpr, nd.TupleExpr, nd.SetExpr)):
        return all(isinstance(element, nd.Constant) for element in node.elements)
    return isinstance(node, nd.Constant)


def _tests_counter(test: nd.Expr, counters: frozenset[str]) -> bool:
    if isinstance(test, nd.BoolOp):
        return any(_tests_counter(v, counters) for v in test.values)
    if isinstance(test, nd.Unary):
        return _tests_counter(test.operand, counters)
    return not counters.isdisjoint(names_in(test))


def _flatten(body: nd.Block) -> Iterator[nd.Stmt]:
    for statement in body:
        if isinstance(statement, nd.Placed):
            yield from _flatten(statement.body)
        else:
            yield statement


def _is_docstring(statement: nd.Stmt) -> bool:
    return isinstance(statement, nd.ExprStmt) and isinstance(statement.value, nd.Constant)
