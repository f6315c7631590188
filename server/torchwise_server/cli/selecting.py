"""Options that say which findings count, shared by the commands that look for them."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from torchwise_analysis.findings import Confidence, Severity
from torchwise_analysis.settings import LoadedSettings, Settings, SettingsFinder
from torchwise_server.cli.options import require_known_rules, require_sound, values_of, words_of


def add_selection(parser: argparse.ArgumentParser) -> None:
    """`--select`, `--ignore`, `--min-confidence`, `--fail-on`, `--fail-confidence`."""
    parser.add_argument("--select", action="append", metavar="RULES", help="run only these rules")
    parser.add_argument("--ignore", action="append", metavar="RULES", help="do not run these rules")
    parser.add_argument(
        "--min-confidence", choices=values_of(Confidence), help="show this grade and better (default: likely)"
    )
    parser.add_argument(
        "--fail-on", choices=values_of(Severity), help="lowest severity that fails (default: error)"
    )
    parser.add_argument(
        "--fail-confidence", choices=values_of(Confidence), help="lowest grade that fails (default: certain)"
    )


def require_known_selection(options: argparse.Namespace) -> None:
    """Raises UsageError where `--select` or `--ignore` names no rule."""
    require_known_rules(words_of(options.select) or (), "--select")
    require_known_rules(words_of(options.ignore) or (), "--ignore")


def settings_for(path: str, options: argparse.Namespace, finder: SettingsFinder) -> LoadedSettings:
    """Settings of the file with the options over them.

    Raises:
        UsageError: the settings file has mistakes or names unknown rules.
    """
    loaded = require_sound(finder.find(Path(path)))
    settings = loaded.settings
    ignored_somewhere = (rule for _, rules in settings.per_file_ignores for rule in rules)
    graded = (rule for rule, _ in settings.severity)
    require_known_rules((*settings.select, *settings.ignore, *ignored_somewhere, *graded), str(loaded.path))
    return replace(loaded, settings=_overridden(settings, options))


def _overridden(settings: Settings, options: argparse.Namespace) -> Settings:
    select, ignore = words_of(options.select), words_of(options.ignore)
    if select is not None:
        settings = replace(settings, select=select)
    if ignore is not None:
        settings = replace(settings, ignore=ignore)
    if options.min_confidence:
        settings = replace(settings, min_confidence=Confidence(options.min_confidence))
    if options.fail_on:
        settings = replace(settings, fail_on=Severity(options.fail_on))
    if options.fail_confidence:
        settings = replace(settings, fail_confidence=Confidence(options.fail_confidence))
    return settings
