"""What an editor's user can choose, beside the project's own settings.

Clients send the table `torchwise` (initialization options or `workspace/configuration`). Keys are camelCase.
Editor-only choices are fields of `EditorOptions`; every other key is one of the project settings, and an
editor's value wins over the pyproject.toml. The extension's manifest declares the same names and defaults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import cast

from torchwise_analysis.policy import Surface
from torchwise_analysis.settings import Settings, settings_from_table


@dataclass(frozen=True, slots=True)
class EditorOptions:
    """Defaults are what an editor shows without any settings."""

    enable: bool = field(default=True, metadata={"help": "Analyse PyTorch code while it is edited."})
    strict: bool = field(
        default=False,
        metadata={"help": "Also show findings that rest on conventions, and none of them a level lower."},
    )
    code_lens: bool = field(default=True, metadata={"help": "Show the peak memory above each training loop."})
    inlay_hints: bool = field(
        default=False,
        metadata={"help": "Show at the end of a line how much of what it made lives at the peak."},
    )
    hover: bool = field(default=True, metadata={"help": "Explain findings and estimates on hover."})
    run_on: str = field(
        default="type", metadata={"help": "When to analyse: while typing (type) or on save (save)."}
    )
    workspace_diagnostics: bool = field(
        default=False, metadata={"help": "Also list findings of files in the workspace that are not open."}
    )
    docs_url: str = field(
        default="",
        metadata={
            "help": "Address of a published copy of the documentation, where the links of findings lead; "
            "empty: the pages that come with torchwise.",
            "scope": "window",
        },
    )
    overrides: tuple[tuple[str, object], ...] = ()
    """Project settings chosen in the editor, as read from the client."""

    @property
    def surface(self) -> Surface:
        return Surface.EDITOR_STRICT if self.strict else Surface.EDITOR

    def with_gpus(self, names: tuple[str, ...]) -> EditorOptions:
        """The same with other cards."""
        kept = tuple(entry for entry in self.overrides if entry[0] != "gpus")
        return replace(self, overrides=(*kept, ("gpus", list(names))))

    def applied_to(self, settings: Settings) -> Settings:
        """Project settings with those of the editor laid over them."""
        made, _ = settings_from_table(dict(self.overrides), settings)
        return made


EDITOR_FIELDS = tuple(item for item in fields(EditorOptions) if item.name != "overrides")


def table_of(value: object) -> Mapping[str, object] | None:
    """A JSON object from the client; None if it is something else."""
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else None


def read_options(table: object) -> tuple[EditorOptions, tuple[str, ...]]:
    """Options from a client's table, and what is wrong with it; a wrong value leaves the default."""
    if table is None:
        return EditorOptions(), ()
    settings = table_of(table)
    if settings is None:
        return EditorOptions(), ("torchwise: the settings must be a table",)
    chosen: dict[str, object] = {}
    overrides: dict[str, object] = {}
    problems: list[str] = []
    own = {item.name: item.default for item in EDITOR_FIELDS}
    for key, value in settings.items():
        name = _snake(key)
        if name not in own:
            if value is not None:
                overrides[name.replace("_", "-")] = value
        elif type(value) is not type(own[name]) or not _is_possible(name, value):
            problems.append(f"torchwise.{key}: {value!r} is not a value of this setting")
        else:
            chosen[name] = value
    _, wrong = settings_from_table(overrides)
    problems += [f"torchwise.{problem.key}: {problem.message}" for problem in wrong if not _ours(problem.key)]
    kept = {key: value for key, value in overrides.items() if key not in {problem.key for problem in wrong}}
    made = EditorOptions(**chosen, overrides=tuple(kept.items()))  # type: ignore[arg-type]  # types compared above
    return made, tuple(problems)


def _is_possible(name: str, value: object) -> bool:
    if name == "run_on":
        return value in ("type", "save")
    return name != "docs_url" or value == "" or re.fullmatch(r"https?://\S+", str(value)) is not None


def _ours(key: str) -> bool:
    """Settings of the VS Code extension itself, which arrive in the same table."""
    return key in ("interpreter", "import-strategy", "trace", "trace-server", "log-level", "status")


def _snake(key: str) -> str:
    return re.sub(r"([A-Z])", r"_\1", key).lower().replace("-", "_").replace(".", "_")
