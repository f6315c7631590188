"""Files that call each other: what one shows by itself, less what its callers know better.

A file by itself runs each function that nobody in it calls on arguments that nobody knows. Where another
file calls the function, its arguments are seen there. So a finding of a file by itself stands in a check of
many files

* if it is found without these runs, too;
* or if it is found from another file as well, and proven less there (a run that came there was cut short);
* or if no run from another file executed the statement that it is placed at, in a call that was followed to
  its end: then nobody knows better.

Nothing else is said: a check of many files never says what no file by itself does. A test is no caller: the
arguments of a test tell nothing of those of a training.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchwise_analysis.findings import Finding, Place
from torchwise_analysis.policy import at_least_confidence

FunctionKey = tuple[str, int, int, str]  # file, line, column, name

# Lines of files, from 0: bit n of a number is line n.
Lines = Mapping[str, int]

_TESTS = re.compile(r"(^|[\\/])(tests?|testing)[\\/]|(^|[\\/])(test_[^\\/]*|[^\\/]*_test|conftest)\.py$")


@dataclass(frozen=True, slots=True)
class Caller:
    """What the runs of one file did in others. path: of the file; passed: statements they executed. told:
    what is found from it, functions that others call not run on unknown arguments."""

    path: str
    reached: Iterable[FunctionKey]
    passed: Lines
    told: Iterable[Finding] = ()


@dataclass(slots=True)
class Callers:
    """What is called from where, for all files of a check. Told of each file once, in any order.

    root: the folder that all files lie in; what it is called says nothing of them.
    """

    root: str = ""
    _called: dict[str, set[FunctionKey]] = field(default_factory=dict[str, set[FunctionKey]])
    _passed: dict[str, list[tuple[str, int]]] = field(default_factory=dict[str, list[tuple[str, int]]])
    _told: dict[tuple[str, Place], list[tuple[str, Finding]]] = field(
        default_factory=dict[tuple[str, Place], list[tuple[str, Finding]]]
    )

    def add(self, caller: Caller) -> None:
        if is_test(caller.path[len(self.root) :] if caller.path.startswith(self.root) else caller.path):
            return
        for key in caller.reached:
            if key[0] != caller.path:
                self._called.setdefault(key[0], set()).add(key)
        for path, lines in caller.passed.items():
            if path != caller.path:
                self._passed.setdefault(path, []).append((caller.path, lines))
        for finding in caller.told:
            if finding.place.path != caller.path:
                self._told.setdefault(_key(finding), []).append((caller.path, finding))

    def into(self, path: str) -> frozenset[FunctionKey]:
        """The functions of a file that others call."""
        return frozenset(self._called.get(path, ()))

    def know_better(self, finding: Finding, path: str) -> bool:
        """Did a run from another file than `path` and the finding's own execute the statement that it is
        placed at, and was it not found from there, or proven as well?"""
        told = [one for caller, one in self._told.get(_key(finding), ()) if caller != path]
        if told:
            return not all(_is_better(finding, one) for one in told)
        line, passed = finding.place.span.line, self._passed.get(finding.place.path, ())
        return any(lines >> line & 1 for caller, lines in passed if caller != path)


def root_of(paths: Iterable[str]) -> str:
    """The folder that all these files lie in."""
    folders = {os.path.dirname(path) for path in paths}  # noqa: PTH120 - texts, as they were given
    try:
        return os.path.commonpath(folders) if folders else ""
    except ValueError:  # on different drives
        return ""


def is_test(path: str) -> bool:
    """Is the file a test, by the names that pytest and unittest look for?"""
    return _TESTS.search(path) is not None


def alone(by_itself: Sequence[Finding], with_callers: Sequence[Finding]) -> tuple[Finding, ...]:
    """What a file shows by itself only: it rests on runs on arguments that nobody knows."""
    known = {_key(finding) for finding in with_callers}
    return tuple(finding for finding in by_itself if _key(finding) not in known)


def agreed(
    path: str, by_itself: Sequence[Finding], with_callers: Sequence[Finding], callers: Callers
) -> tuple[Finding, ...]:
    """What stands of a file's findings: see above. with_callers: found without the functions that others
    call being run on unknown arguments; graded by what their callers know."""
    shown = {_key(finding) for finding in by_itself}
    found = [finding for finding in with_callers if _key(finding) in shown]
    found += [one for one in alone(by_itself, with_callers) if not callers.know_better(one, path)]
    return sorted_by_place(found)


def standing(
    files: Sequence[Caller], by_itself: Sequence[Sequence[Finding] | None]
) -> list[tuple[Finding, ...]]:
    """What stands of the findings of all files. by_itself: what each shows when called functions are run on
    unknown arguments, too; None where no file calls it, and `told` is all that it shows."""
    root = root_of(file.path for file in files)
    found = [tuple(file.told) for file in files]
    with_callers = list(found)
    for _ in range(2):  # what stands of one file may be told from another one, which it stands in, too
        callers = Callers(root)
        for file, told in zip(files, found, strict=True):
            callers.add(replace(file, told=told))
        found = [
            known if own is None else agreed(file.path, own, known, callers)
            for file, own, known in zip(files, by_itself, with_callers, strict=True)
        ]
    return found


def best_told(files: Iterable[Iterable[Finding]]) -> list[tuple[int, Finding]]:
    """Each finding of several files once, with the number of the file that it is told from: a fault in a
    helper is found from every file that calls it, and best proven by one of them."""
    best: dict[tuple[object, ...], tuple[int, Finding]] = {}
    for number, findings in enumerate(files):
        for finding in findings:
            key = (finding.place.path, finding.place.span, finding.rule)
            if key not in best or _is_better(finding, best[key][1]):
                best[key] = number, finding
    return list(best.values())


def _is_better(one: Finding, other: Finding) -> bool:
    return one.confidence is not other.confidence and at_least_confidence(one.confidence, other.confidence)


def sorted_by_place(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """In the order of a report."""
    return tuple(sorted(findings, key=lambda one: (one.place.path, one.place.span, one.code)))


def _key(finding: Finding) -> tuple[str, Place]:
    return finding.rule, finding.place
