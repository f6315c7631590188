"""Mechanical changes of a script that may save memory, as edits of its text.

A call is found by what it is called and, where one is known, by its line; whether an edit saves anything is
for a run of the edited text to say.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from torchwise_analysis.names.project import Project
from torchwise_analysis.source import lower_text
from torchwise_analysis.source.nodes import Module
from torchwise_memory.report import Origin, TextEdit

#: Files of a project that are looked through for calls; a training script has few.
MAX_FILES = 8
# Calls whose keywords are the settings of transformers' Trainer.
_ARGUMENTS = (
    "TrainingArguments", "SFTConfig", "DPOConfig", "RewardConfig", "KTOConfig", "ORPOConfig", "GRPOConfig",
)  # fmt: skip
_ADAM = ("Adam", "AdamW")
_NO_8_BITS = ("fused", "foreach", "capturable", "maximize", "differentiable", "amsgrad")


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A change of the text. stands_for: the named change of a run that it makes unnecessary to try."""

    title: str
    cost: str
    edits: tuple[TextEdit, ...]
    stands_for: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """One file of the project, parsed."""

    path: str
    lines: tuple[str, ...]
    tree: ast.Module

    def calls(self) -> Iterator[ast.Call]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))

    def edit(self, start: tuple[int, int], end: tuple[int, int], text: str) -> TextEdit:
        """start and end: line from 1 and column in UTF-8 bytes, as `ast` has them."""
        (line, column), (end_line, end_column) = start, end
        return TextEdit(
            self.path,
            line - 1,
            self._points(line, column),
            end_line - 1,
            self._points(end_line, end_column),
            text,
        )

    def _points(self, line: int, column: int) -> int:
        return len(self.lines[line - 1].encode()[:column].decode(errors="replace"))


# Characters of a file that remedies are written into: parsing and trying a larger one takes seconds.
_LONGEST = 300_000


def texts(paths: Iterable[str], project: Project, read: Callable[[str], str | None]) -> list[Text]:
    """The project's own files among those that a run read, as far as they can be parsed."""
    found: list[Text] = []
    for path in dict.fromkeys(paths):
        if len(found) >= MAX_FILES:
            break
        content = read(path) if path.endswith(".py") else None
        if content is None or len(content) > _LONGEST or project.is_library(path):
            continue
        try:
            # columns of `ast` count in the text as it is; a byte order mark would shift them
            tree = ast.parse(content)
        except (SyntaxError, ValueError, RecursionError):
            continue
        found.append(Text(path, tuple(content.split("\n")), tree))
    return found


def edited(edits: tuple[TextEdit, ...], read: Callable[[str], str | None]) -> dict[str, Module] | None:
    """The modules of the files that the edits change; None where one cannot be read or is no Python then."""
    modules: dict[str, Module] = {}
    for path in dict.fromkeys(edit.path for edit in edits):
        content = read(path)
        if content is None:
            return None
        try:
            modules[path] = lower_text(path, applied(content, [edit for edit in edits if edit.path == path]))
        except (SyntaxError, ValueError, RecursionError):
            return None
    return modules


def applied(text: str, edits: Iterable[TextEdit]) -> str:
    """The text of a file with edits of that file made, from the end so that places hold."""
    changed = text.split("\n")
    for edit in sorted(edits, key=lambda e: (e.line, e.column), reverse=True):
        before, after = changed[edit.line][: edit.column], changed[edit.end_line][edit.end_column :]
        changed[edit.line : edit.end_line + 1] = [before + edit.text + after]
    return "\n".join(changed)


def moved(origin: Origin, edits: Iterable[TextEdit]) -> Origin:
    """Where a line is once the edits before it have added lines."""
    added = sum(
        edit.text.count("\n") - (edit.end_line - edit.line)
        for edit in edits
        if edit.path == origin.path and edit.line < origin.line - 1
    )
    return Origin(origin.path, origin.line + added)


def overlap(edits: tuple[TextEdit, ...]) -> bool:
    """Whether two of the edits touch the same place, so that they cannot both be made."""
    ordered = sorted(edits, key=lambda e: (e.path, e.line, e.column))
    return any(
        one.path == other.path and (other.line, other.column) <= (one.end_line, one.end_column)
        for one, other in pairwise(ordered)
    )


# --------------------------------------------------------------------------- the changes


def fused_optimizer(files: list[Text], origin: Origin | None) -> Rewrite | None:
    """`fused=True` in the call that made the optimizer."""
    for file, call in _calls_at(files, origin):
        if _name_of(call) in _ADAM and not _has(call, "fused", "foreach"):
            edit = _with_keyword(file, call, "fused", "True")
            if edit is not None:
                return Rewrite(f"{_name_of(call)}(..., fused=True)", "none; usually faster", (edit,), "fused")
    return None


def eight_bit_optimizer(files: list[Text], origin: Origin | None) -> Rewrite | None:
    """Adam of bitsandbytes in place of PyTorch's, in its call or in the Trainer's arguments."""
    cost = "states are quantised to 8 bits; needs bitsandbytes"
    for file, call in _argument_calls(files):
        edit = _with_keyword(file, call, "optim", '"adamw_bnb_8bit"')
        if edit is not None:
            return Rewrite(f'{_name_of(call)}(..., optim="adamw_bnb_8bit")', cost, (edit,))
    for file, call in _calls_at(files, origin):
        name = _name_of(call)
        if name not in _ADAM or _has(call, *_NO_8_BITS) or call.func.end_lineno is None:
            continue
        callee = file.edit(*_span(call.func), f"bnb.optim.{name}8bit")
        first = next((n for n in file.tree.body if isinstance(n, ast.Import | ast.ImportFrom)), None)
        if first is None or (isinstance(first, ast.ImportFrom) and first.module == "__future__"):
            continue
        at = (first.lineno, first.col_offset)
        imported = file.edit(at, at, "import bitsandbytes as bnb\n")
        return Rewrite(f"bitsandbytes.optim.{name}8bit", cost, (imported, callee))
    return None


def dropped_gradients(files: list[Text]) -> Rewrite | None:
    """`set_to_none=True` wherever gradients are filled with zeros."""
    edits: list[TextEdit] = []
    for file in files:
        for call in file.calls():
            if _name_of(call) != "zero_grad":
                continue
            given = [k.value for k in call.keywords if k.arg == "set_to_none"] or call.args[:1]
            edits += [file.edit(*_span(value), "True") for value in given if _is(value, False)]
    if not edits:
        return None
    return Rewrite(
        "zero_grad(set_to_none=True)", "gradients are None between steps", tuple(edits), "set_to_none"
    )


def checkpointing(files: list[Text], model: Origin | None) -> Rewrite | None:
    """In the Trainer's arguments, else behind the statement that makes the model."""
    cost = "about a third more computing time"
    for file, call in _argument_calls(files):
        edit = _with_keyword(file, call, "gradient_checkpointing", "True")
        if edit is not None:
            title = f"{_name_of(call)}(..., gradient_checkpointing=True)"
            return Rewrite(title, cost, (edit,), "checkpointing")
    for file in files:
        made = _assignment_at(file, model)
        if made is not None:
            statement, name = made
            line = statement.end_lineno or statement.lineno
            indent = file.lines[statement.lineno - 1][: file.edit(*_span(statement), "").column]
            if indent.strip():
                continue  # behind another statement on its line
            # the end of the line, so that a comment stays where it is
            end = (line, len(file.lines[line - 1].rstrip("\r").encode()))
            text = f"\n{indent}{name}.gradient_checkpointing_enable()"
            title = f"{name}.gradient_checkpointing_enable()"
            return Rewrite(title, cost, (file.edit(end, end, text),), "checkpointing")
    return None


def half_precision(files: list[Text]) -> Rewrite | None:
    """bf16 autocast by the setting of the framework that runs the step."""
    cost = "bfloat16 rounding in matrix products; usually faster"
    for file, call in _argument_calls(files):
        if not _has(call, "bf16", "fp16"):
            edit = _with_keyword(file, call, "bf16", "True")
            if edit is not None:
                return Rewrite(f"{_name_of(call)}(..., bf16=True)", cost, (edit,), "autocast")
    settings = {"Accelerator": ("mixed_precision", '"bf16"'), "Fabric": ("precision", '"bf16-mixed"')}
    for file in files:
        for call in file.calls():
            if _name_of(call) in settings:
                keyword, value = settings[_name_of(call)]
                edit = _with_keyword(file, call, keyword, value)
                if edit is not None:
                    return Rewrite(f"{_name_of(call)}(..., {keyword}={value})", cost, (edit,), "autocast")
    return None


def half_weights(files: list[Text], keyword: str) -> Rewrite | None:
    """Weights, gradients and states in bf16, for a model that a library loads."""
    for file, call in _loading_calls(files):
        if not _has(call, "dtype", "torch_dtype"):
            edit = _with_keyword(file, call, keyword, "torch.bfloat16")
            if edit is not None and _imports(file, "torch"):
                title = f"from_pretrained(..., {keyword}=torch.bfloat16)"
                cost = "changes training: small updates are lost without an fp32 copy"
                return Rewrite(title, cost, (edit,))
    return None


def no_cache(files: list[Text]) -> Rewrite | None:
    """`use_cache=False`: training needs no keys and values of earlier tokens."""
    for file, call in _loading_calls(files):
        edit = _with_keyword(file, call, "use_cache", "False")
        if edit is not None:
            return Rewrite("from_pretrained(..., use_cache=False)", "none while training", (edit,))
    return None


def fused_attention(files: list[Text]) -> Rewrite | None:
    """SDPA where attention is asked to be written out."""
    for file in files:
        for call in file.calls():
            for keyword in call.keywords:
                if keyword.arg == "attn_implementation" and _is(keyword.value, "eager"):
                    edit = file.edit(*_span(keyword.value), '"sdpa"')
                    return Rewrite('attn_implementation="sdpa"', "none: the same up to rounding", (edit,))
    return None


# --------------------------------------------------------------------------- calls


def _argument_calls(files: list[Text]) -> Iterator[tuple[Text, ast.Call]]:
    return _named(files, lambda call: _name_of(call) in _ARGUMENTS)


def _loading_calls(files: list[Text]) -> Iterator[tuple[Text, ast.Call]]:
    def loads_model(call: ast.Call) -> bool:
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        name = _last(owner)
        return _name_of(call) == "from_pretrained" and ("Model" in name or "For" in name)

    return _named(files, loads_model)


def _named(files: list[Text], wanted: Callable[[ast.Call], bool]) -> Iterator[tuple[Text, ast.Call]]:
    return ((file, call) for file in files for call in file.calls() if wanted(call))


def _calls_at(files: list[Text], origin: Origin | None) -> Iterator[tuple[Text, ast.Call]]:
    """Calls on a line of a file, the outermost first."""
    if origin is None:
        return
    for file in files:
        if file.path == origin.path:
            for call in file.calls():
                if call.lineno <= origin.line <= (call.end_lineno or call.lineno):
                    yield file, call


def _assignment_at(file: Text, origin: Origin | None) -> tuple[ast.Assign, str] | None:
    """`name = call(...)` on that line."""
    if origin is None or file.path != origin.path:
        return None
    for node in ast.walk(file.tree):
        if (
            isinstance(node, ast.Assign)
            and node.lineno <= origin.line <= (node.end_lineno or node.lineno)
            and isinstance(node.value, ast.Call)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name)
        ):
            return node, node.targets[0].id
    return None


def _with_keyword(file: Text, call: ast.Call, name: str, value: str) -> TextEdit | None:
    """The edit that makes the call take `name=value`; None where it takes that or where it cannot be told."""
    given = next((k for k in call.keywords if k.arg == name), None)
    if given is not None:
        if isinstance(given.value, ast.Constant) and ast.unparse(given.value) != _normal(value):
            return file.edit(*_span(given.value), value)
        return None
    if any(k.arg is None for k in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args):
        return None  # `**options` may hold it
    last = max((*call.args, *(k.value for k in call.keywords)), key=lambda n: _span(n)[1], default=None)
    if last is None:
        end = (call.end_lineno or call.lineno, (call.end_col_offset or 1) - 1)
        return file.edit(end, end, f"{name}={value}")
    if isinstance(last, ast.GeneratorExp) and len(call.args) == 1 and not call.keywords:
        return None  # `f(x for x in y)` takes no second argument
    end = _span(last)[1]
    return file.edit(end, end, f", {name}={value}")


def _normal(value: str) -> str:
    return ast.unparse(ast.parse(value, mode="eval"))


def _imports(file: Text, name: str) -> bool:
    return any(
        isinstance(node, ast.Import) and any(a.name == name and a.asname is None for a in node.names)
        for node in file.tree.body
    )


def _has(call: ast.Call, *names: str) -> bool:
    return any(keyword.arg in names for keyword in call.keywords)


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is type(value) and node.value == value


def _name_of(call: ast.Call) -> str:
    return _last(call.func)


def _last(node: ast.expr | None) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _span(node: ast.expr | ast.stmt) -> tuple[tuple[int, int], tuple[int, int]]:
    end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    return (node.lineno, node.col_offset), (end_line, end_column)
