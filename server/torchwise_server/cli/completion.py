"""`torchwise completion SHELL`: what a shell needs to complete our command lines, made from the parsers."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from torchwise_server.cli import COMMANDS, Exit
from torchwise_server.cli.options import Parser
from torchwise_server.cli.output import say

_DESCRIPTION = """\
Print a script that completes commands, options, and their values (rules and GPUs by name) in a shell."""

_EPILOG = """\
install:
  bash   torchwise completion bash > ~/.local/share/bash-completion/completions/torchwise
  zsh    torchwise completion zsh > "${fpath[1]}/_torchwise"
  fish   torchwise completion fish > ~/.config/fish/completions/torchwise.fish
or, for this session only:
  source <(torchwise completion bash)"""

#: The options whose values are on a list.
_LISTED = {
    "--select": "rules", "--ignore": "rules", "--gpu": "gpus", "--model": "models", "--for": "models",
}  # fmt: skip
_LISTS = ("rules", "gpus", "models")


@dataclass(frozen=True, slots=True)
class _Option:
    """An option as a shell sees it. values: the words it takes; listed: the name of a list of them."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    values: tuple[str, ...] = ()
    listed: str = ""


@dataclass(frozen=True, slots=True)
class _Command:
    name: str
    help: str
    options: tuple[_Option, ...]
    takes_files: bool
    values: tuple[str, ...] = ()
    listed: str = ""


def run(words: list[str]) -> int:
    """Print the script, or one of the lists that it asks for."""
    options = parser().parse(words)
    if options.shell in _LISTS:
        say("\n".join(_words_of_list(options.shell)))
    else:
        say(_SHELLS[options.shell](tuple(_commands())))
    return Exit.OK


def parser() -> Parser:
    """The options of the command."""
    parser = Parser("completion", _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "shell",
        metavar="SHELL",
        choices=(*_SHELLS, *_LISTS),
        help=f"{', '.join(_SHELLS)}; {', '.join(_LISTS)} print the words that scripts complete with",
    )
    return parser


def _words_of_list(name: str) -> list[str]:
    if name == "rules":
        from torchwise_analysis.rules import all_rules

        return [entry.rule.name for entry in all_rules()]
    if name == "models":
        from torchwise_memory.presets import presets

        return [preset.name for preset in presets()]
    from torchwise_memory.hardware import gpus

    return [gpu.name for gpu in gpus()]


# --------------------------------------------------------------------------- from the parsers


def _commands() -> Iterator[_Command]:
    for name, what in COMMANDS.items():
        module = importlib.import_module(f"torchwise_server.cli.{name.replace('-', '_')}")
        make = cast("Callable[[], argparse.ArgumentParser] | None", getattr(module, "parser", None))
        if make is None:
            yield _Command(name, what, (), takes_files=False)
            continue
        actions = make()._actions  # argparse has no other way to ask; a test holds the result to --help
        options = tuple(_option(action) for action in actions if action.option_strings)
        free = next((action for action in actions if not action.option_strings), None)
        values = tuple(str(choice) for choice in (free.choices or ())) if free is not None else ()
        metavar = str(free.metavar) if free is not None else ""
        yield _Command(
            name,
            what,
            options,
            takes_files=metavar in ("PATH", "FILE"),
            values=values,
            listed={"RULE": "rules"}.get(metavar, "gpus" if name == "gpus" else ""),
        )


def _option(action: argparse.Action) -> _Option:
    names = tuple(action.option_strings)
    listed = _LISTED.get(names[-1], "")
    return _Option(
        names,
        re.sub(r"\s+", " ", action.help or "").replace("%%", "%"),
        takes_value=action.nargs != 0,
        values=tuple(str(choice) for choice in (action.choices or ())),
        listed=listed,
    )


# --------------------------------------------------------------------------- bash


def _bash(commands: Sequence[_Command]) -> str:
    values: list[str] = []
    options: list[str] = []
    for command in commands:
        for option in command.options:
            pattern = "|".join(f"{command.name}:{name}" for name in option.names)
            if option.values or option.listed:
                values.append(f"    {pattern}) words={_bash_words(option.values, option.listed)} ;;")
            elif option.takes_value:
                values.append(f"    {pattern}) COMPREPLY=(); return ;;")
        names = " ".join(name for option in command.options for name in option.names)
        free = _bash_words(command.values, command.listed) if command.values or command.listed else "''"
        options.append(f"    {command.name}) options='{names}'; free={free} ;;")
    names = " ".join(command.name for command in commands)
    return f"""\
# bash completion for torchwise; made by `torchwise completion bash`
_torchwise() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}}
  local words='' options='' free=''
  COMPREPLY=()
  if [[ $COMP_CWORD -eq 1 ]]; then
    COMPREPLY=($(compgen -W '{names} --help --version' -- "$current"))
    return
  fi
  case "$command:$previous" in
{chr(10).join(values)}
  esac
  if [[ -n $words ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    return
  fi
  case "$command" in
{chr(10).join(options)}
  esac
  if [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$current"))
  elif [[ -n $free ]]; then
    COMPREPLY=($(compgen -W "$free" -- "$current"))
  fi
}}
complete -o default -o bashdefault -F _torchwise torchwise"""


def _bash_words(values: Sequence[str], listed: str) -> str:
    return f"$(torchwise completion {listed} 2>/dev/null)" if listed else f"'{' '.join(values)}'"


# --------------------------------------------------------------------------- zsh


def _zsh(commands: Sequence[_Command]) -> str:
    listed = "\n".join(f"    '{command.name}:{_zsh_text(command.help)}'" for command in commands)
    cases: list[str] = []
    for command in commands:
        rows = [_zsh_option(option) for option in command.options]
        if command.takes_files:
            rows.append("'*:path:_files'")
        elif command.values or command.listed:
            rows.append(f"'*:value:{_zsh_values(command.values, command.listed)}'")
        cases.append(f"    {command.name}) _arguments -s {' '.join(rows)} ;;")
    return f"""\
#compdef torchwise
# zsh completion for torchwise; made by `torchwise completion zsh`
_torchwise() {{
  local -a commands
  commands=(
{listed}
  )
  if (( CURRENT == 2 )); then
    _describe 'command' commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{chr(10).join(cases)}
  esac
}}
if [ "$funcstack[1]" = "_torchwise" ]; then _torchwise "$@"; else compdef _torchwise torchwise; fi"""


def _zsh_option(option: _Option) -> str:
    value = ""
    if option.takes_value:
        value = ":value:" + (
            _zsh_values(option.values, option.listed) if option.values or option.listed else "_files"
        )
    text = _zsh_text(option.help)
    if len(option.names) == 1:
        return f"'*{option.names[0]}[{text}]{value}'"
    return f"'*'{{{','.join(option.names)}}}'[{text}]{value}'"


def _zsh_values(values: Sequence[str], listed: str) -> str:
    if listed:
        return f"{{compadd -- $(torchwise completion {listed} 2>/dev/null)}}"
    return f"({' '.join(values)})"


def _zsh_text(text: str) -> str:
    return re.sub(r"([\\\[\]:])", r"\\\1", text).replace("'", "'\\''")


# --------------------------------------------------------------------------- fish


def _fish(commands: Sequence[_Command]) -> str:
    names = " ".join(command.name for command in commands)
    lines = [
        "# fish completion for torchwise; made by `torchwise completion fish`",
        f"set -l commands {names}",
        "complete -c torchwise -f -n \"not __fish_seen_subcommand_from $commands\" -l help -d 'show help'",
        'complete -c torchwise -f -n "not __fish_seen_subcommand_from $commands" -l version',
    ]
    lines += [
        f'complete -c torchwise -f -n "not __fish_seen_subcommand_from $commands" '
        f"-a {command.name} -d {_fish_text(command.help)}"
        for command in commands
    ]
    for command in commands:
        seen = f'complete -c torchwise -n "__fish_seen_subcommand_from {command.name}"'
        for option in command.options:
            words = [seen]
            words += [f"-l {name[2:]}" for name in option.names if name.startswith("--")]
            words += [f"-s {name[1:]}" for name in option.names if not name.startswith("--")]
            if option.values or option.listed:
                words.append(f"-x -a {_fish_values(option.values, option.listed)}")
            elif option.takes_value:
                words.append("-r")
            lines.append(" ".join((*words, f"-d {_fish_text(option.help)}")))
        if command.values or command.listed:
            lines.append(f"{seen} -f -a {_fish_values(command.values, command.listed)}")
    return "\n".join(lines)


def _fish_values(values: Sequence[str], listed: str) -> str:
    return f"'(torchwise completion {listed} 2>/dev/null)'" if listed else f"'{' '.join(values)}'"


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SHELLS: dict[str, Callable[[Sequence[_Command]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
