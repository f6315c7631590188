"""Comments that silence findings, and the hints about those that silence nothing.

    loss_sum += loss  # torchwise: ignore[retained-graph] -- three iterations only
    # torchwise: ignore-file[unguarded-eval]              (on its own line, before the first statement)
    loss_sum += loss  # noqa: TW101

Only comment tokens count, never text inside strings. A bare `# noqa` was written for another tool and would
hide a lost training run; a setting accepts it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torchwise_analysis.findings import Confidence, Edit, Finding, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, apply_edits, insert_at
from torchwise_analysis.settings import Settings, suggestion
from torchwise_analysis.source.lines import line_starts
from torchwise_analysis.source.nodes import Span

UNUSED = ("TW001", "unused-suppression")
UNKNOWN = ("TW002", "unknown-suppression")
UNREASONED = ("TW003", "suppression-without-reason")

# Strings are matched only to be passed over. One that does not end, ends with its line (or with the file).
_STRING_OR_COMMENT = re.compile(
    r"""(?P<comment>\#[^\r\n]*)
    |\"\"\"(?:\\.|[^\\])*?(?:\"\"\"|\Z)
    |\'\'\'(?:\\.|[^\\])*?(?:\'\'\'|\Z)
    |"(?:\\.|[^"\\\r\n])*"?
    |'(?:\\.|[^'\\\r\n])*'?""",
    re.DOTALL | re.VERBOSE,
)
_OURS = re.compile(r"#\s*torchwise:\s*(?P<kind>ignore-file|ignore)\b\s*(?:\[(?P<names>[^\]]*)\])?")
_REASON = re.compile(r"\s*--\s*\S")
_WHOLE_REASON = re.compile(r"\s*--[^#]*")
_NOQA = re.compile(
    r"#\s*noqa\b(?P<codes>\s*:\s*(?P<list>[A-Z]+[0-9]+(?:[\s,]+[A-Z]+[0-9]+)*))?", re.IGNORECASE
)
_WORD = re.compile(r"[^,\s]+")
# The interpreter's and the encoding's line have to come first.
_BEFORE_EVERYTHING = re.compile(r"#!|#.*coding[:=]")


class Comment(NamedTuple):
    """A comment token, from its `#` to the end of its line."""

    line: int
    column: int
    text: str


@dataclass(frozen=True, slots=True)
class Suppression:
    """One name in one comment.

    rule: the rule meant (None: not one of ours, or every rule for a bare `# noqa`). word, word_span: as
    written. comment: the whole comment's range. whole_file: holds for every line. has_reason: a text stands
    behind `--`.
    """

    rule: str | None
    word: str
    word_span: Span
    comment: Span
    whole_file: bool
    has_reason: bool
    is_noqa: bool = False

    def covers(self, rule: str, span: Span) -> bool:
        """Whether it silences a finding of `rule` at `span`: on its first or last line, or file-wide."""
        if self.rule is not None and self.rule != rule:
            return False
        return self.whole_file or self.comment.line in (span.line, span.end_line)


def apply(
    file: SourceFile,
    findings: Sequence[Finding],
    settings: Settings,
    names: Mapping[str, str],
    enabled: Collection[str],
    is_complete: bool = True,
    others: Collection[SourceFile] = (),
) -> tuple[tuple[Finding, ...], int]:
    """Findings left after suppressions, with hints about the comments themselves, and how many were silenced.

    names: rule name by name and by code. enabled: rules that ran; a comment for another cannot be unused.
    is_complete: the analysis saw the whole file; else "unused" would be a guess and is not said. others:
    files that findings may lie in too; their comments silence, but whether one is unused shows only when they
    are analysed themselves.
    """
    found = tuple(_suppressions(file, names, settings))
    honoured = {file.path: [s for s in found if _is_honoured(s, settings)]}
    for other in others:
        if any(finding.place.path == other.path for finding in findings):
            there = _suppressions(other, names, settings)
            honoured[other.path] = [s for s in there if _is_honoured(s, settings)]
    used: set[Suppression] = set()

    def is_silenced(rule: str, place: Place) -> bool:
        covering = [s for s in honoured.get(place.path, ()) if s.covers(rule, place.span)]
        used.update(covering)
        return bool(covering)

    left: list[Finding] = []
    for finding in findings:
        also = tuple(one for one in finding.also if not is_silenced(one.rule, one.place))
        if not is_silenced(finding.rule, finding.place):
            left.append(finding if also == finding.also else replace(finding, also=also))
    silenced = len(findings) - len(left)
    hints = _hints(file, found, used, settings, names, enabled, is_complete)
    return (*left, *hints, *_void_hints(file, left)), silenced


def comments(text: str) -> tuple[Comment, ...]:
    """All comments of a file, also of one that does not parse."""
    starts = line_starts(text)
    found = (match for match in _STRING_OR_COMMENT.finditer(text) if match["comment"] is not None)
    out: list[Comment] = []
    for match in found:
        line = bisect_right(starts, match.start()) - 1
        out.append(Comment(line, match.start() - starts[line], match["comment"]))
    return tuple(out)


def ignore_here(file: SourceFile, finding: Finding, reason: str = "") -> Fix:
    """The fix that writes `# torchwise: ignore[...]` on the finding's line, or adds the name to one there."""
    line = finding.place.span.line
    for comment in comments(file.text):
        if comment.line != line:
            continue
        match = _OURS.search(comment.text)
        if match and match["kind"] == "ignore" and match["names"] is not None:
            separator = ", " if match["names"].strip() else ""
            edit = insert_at(file, line, comment.column + match.end("names"), separator + finding.rule)
            return Fix(f"Ignore {finding.rule} here", Safety.SAFE, (edit,))
        if (
            match
            and match["kind"] == "ignore"
            and file.line(line)[comment.column :].rstrip().endswith("ignore")
        ):
            end = comment.column + len(match[0].rstrip())
            edit = insert_at(file, line, end, f"[{finding.rule}]")
            return Fix(f"Ignore {finding.rule} here", Safety.SAFE, (edit,))
    tail = f" -- {reason}" if reason else ""
    comment_text = f"# torchwise: ignore[{finding.rule}]{tail}"
    for line in (finding.place.span.line, finding.place.span.end_line):
        edit = insert_at(file, line, len(file.line(line).rstrip()), f"  {comment_text}")
        # Behind a continuation or inside a string it would be no comment; then the last line has to do.
        if any(
            c.line == line and c.text.endswith(comment_text) for c in comments(apply_edits(file, (edit,)))
        ):
            break
    return Fix(f"Ignore {finding.rule} here", Safety.SAFE, (edit,))


def ignore_in_file(file: SourceFile, finding: Finding) -> Fix:
    """The fix that writes `# torchwise: ignore-file[...]` above the first statement, or adds to one there."""
    title = f"Ignore {finding.rule} in this file"
    first_statement = _first_statement(file)
    for comment in comments(file.text):
        match = _OURS.search(comment.text)
        if comment.line >= first_statement or match is None or file.line(comment.line)[: comment.column]:
            continue
        if match["kind"] == "ignore-file" and match["names"] is not None:
            separator = ", " if match["names"].strip() else ""
            text = separator + finding.rule
            edit = insert_at(file, comment.line, comment.column + match.end("names"), text)
            return Fix(title, Safety.SAFE, (edit,))
    line = 0
    while line < 2 and _BEFORE_EVERYTHING.match(file.line(line)):
        line += 1
    text = f"# torchwise: ignore-file[{finding.rule}]{file.newline}"
    return Fix(title, Safety.SAFE, (insert_at(file, line, 0, text),))


def named_in_comments(text: str) -> Iterable[tuple[str, Span]]:
    """Each word in the brackets of our comments, with its place: for help on it."""
    for comment in comments(text):
        for match in _OURS.finditer(comment.text):
            for word in _WORD.finditer(match["names"] or ""):
                start = comment.column + match.start("names") + word.start()
                yield word[0], Span(comment.line, start, comment.line, start + len(word[0]))


def _first_statement(file: SourceFile) -> int:
    """Its line; behind the last one where there is none."""
    body = file.module.body
    return min(node.span.line for node in body) if body else len(file.lines)


def _suppressions(file: SourceFile, names: Mapping[str, str], settings: Settings) -> Iterable[Suppression]:
    lowered = file.text.lower()
    if "torchwise" not in lowered and "noqa" not in lowered:
        return  # finding all comments costs more than the rest
    first_statement = _first_statement(file)
    for comment in comments(file.text):
        yield from _ours(file, comment, names, first_statement)
        yield from _noqa(comment, names, settings)


def _ours(
    file: SourceFile, comment: Comment, names: Mapping[str, str], first_statement: int
) -> Iterable[Suppression]:
    span = _span(comment)
    for match in _OURS.finditer(comment.text):
        whole_file = match["kind"] == "ignore-file"
        if match["names"] is None:
            continue
        if whole_file and (
            comment.line >= first_statement or file.line(comment.line)[: comment.column].strip()
        ):
            continue
        has_reason = _REASON.match(comment.text[match.end() :]) is not None
        for word in _WORD.finditer(match["names"]):
            start = comment.column + match.start("names") + word.start()
            word_span = Span(comment.line, start, comment.line, start + len(word[0]))
            yield Suppression(
                names.get(word[0]), word[0], word_span, span, whole_file, has_reason, is_noqa=False
            )


def _noqa(comment: Comment, names: Mapping[str, str], settings: Settings) -> Iterable[Suppression]:
    for match in _NOQA.finditer(comment.text):
        if match["list"] is None:
            if settings.accept_bare_noqa and match["codes"] is None:
                yield Suppression(None, "", _span(comment), _span(comment), False, True, is_noqa=True)
            continue
        for word in _WORD.finditer(match["list"]):
            rule = names.get(word[0].upper())
            start = comment.column + match.start("list") + word.start()
            word_span = Span(comment.line, start, comment.line, start + len(word[0]))
            if rule is not None:
                yield Suppression(rule, word[0], word_span, _span(comment), False, True, is_noqa=True)


def _is_honoured(suppression: Suppression, settings: Settings) -> bool:
    if suppression.rule is None and not suppression.is_noqa:
        return False
    return suppression.has_reason or not settings.require_suppression_reason


def _hints(
    file: SourceFile,
    found: Sequence[Suppression],
    used: Collection[Suppression],
    settings: Settings,
    names: Mapping[str, str],
    enabled: Collection[str],
    is_complete: bool,
) -> Iterable[Finding]:
    for suppression in found:
        if suppression in used or (suppression.rule is None and suppression.is_noqa):
            continue
        remove = Fix("Remove it", Safety.SAFE, (_removal(file, suppression),))
        if suppression.rule is None:
            close = suggestion(suppression.word, tuple(sorted(set(names.values()))))
            fixes = [remove]
            if close:
                better = close.rpartition(" ")[2].strip("?'\"")
                place = Place(file.path, suppression.word_span)
                fixes.insert(0, Fix(f"Change it to {better}", Safety.SAFE, (Edit(place, better),)))
            yield _hint(file, UNKNOWN, f"no rule is called '{suppression.word}'{close}", suppression, fixes)
        elif settings.require_suppression_reason and not suppression.has_reason:
            message = "a suppression needs a reason here: `-- why` behind the bracket"
            yield _hint(file, UNREASONED, message, suppression, [])
        elif is_complete and suppression.rule in enabled:
            message = f"'{suppression.word}' silences nothing here"
            yield _hint(file, UNUSED, message, suppression, [remove])


def _void_hints(file: SourceFile, findings: Sequence[Finding]) -> Iterable[Finding]:
    """Comments of ours that can silence nothing: without names, or `ignore-file` where no file begins."""
    if "torchwise" not in file.text.lower():
        return
    first_statement = _first_statement(file)
    for comment in comments(file.text):
        for match in _OURS.finditer(comment.text):
            start = comment.column + match.start()
            whole_file = match["kind"] == "ignore-file"
            is_named = bool(match["names"] and match["names"].strip())
            is_misplaced = whole_file and not _begins_file(file, comment, first_statement)
            if is_named and not is_misplaced:
                continue
            fixes = [Fix("Remove it", Safety.SAFE, (_whole_removal(file, comment.line, start, match),))]
            if is_misplaced:
                message = "it holds for a file only on a line of its own before the first statement"
            else:
                message = f"without names it silences nothing: write '{match['kind']}[rule-name]'"
                naming = _naming(file, comment, match, findings)
                fixes = fixes if naming is None else [naming, *fixes]
            span = Span(comment.line, start, comment.line, comment.column + match.end())
            place = Place(file.path, span)
            yield Finding(*UNUSED, Severity.HINT, Confidence.CERTAIN, message, place, fixes=tuple(fixes))


def _begins_file(file: SourceFile, comment: Comment, first_statement: int) -> bool:
    return comment.line < first_statement and not file.line(comment.line)[: comment.column].strip()


def _naming(
    file: SourceFile, comment: Comment, match: re.Match[str], findings: Sequence[Finding]
) -> Fix | None:
    """The fix that names the rules which report something where the comment stands."""
    here = [
        finding.rule
        for finding in findings
        if finding.place.path == file.path
        and (
            match["kind"] == "ignore-file"
            or comment.line in (finding.place.span.line, finding.place.span.end_line)
        )
    ]
    if not here:
        return None
    names = ", ".join(dict.fromkeys(here))
    bracketed = match["names"] is not None
    start = match.start("names") if bracketed else match.end()
    end = match.end("names") if bracketed else match.end()
    # behind `ignore` blanks may follow that the pattern took
    start = start if bracketed else start - (len(match[0]) - len(match[0].rstrip()))
    span = Span(
        comment.line, comment.column + start, comment.line, comment.column + (end if bracketed else start)
    )
    text = names if bracketed else f"[{names}]"
    return Fix(f"Name what it is for: {names}", Safety.SAFE, (Edit(Place(file.path, span), text),))


def _hint(
    file: SourceFile, key: tuple[str, str], message: str, suppression: Suppression, fixes: Sequence[Fix]
) -> Finding:
    place = Place(file.path, suppression.word_span)
    return Finding(key[0], key[1], Severity.HINT, Confidence.CERTAIN, message, place, fixes=tuple(fixes))


def _removal(file: SourceFile, suppression: Suppression) -> Edit:
    """Remove one name of a list, else the whole comment with its reason, else the whole line."""
    span, word = suppression.comment, suppression.word_span
    text = file.line(span.line)
    pattern, group = (_NOQA, "list") if suppression.is_noqa else (_OURS, "names")
    match = next(
        found
        for found in pattern.finditer(text, span.column)
        if found.start() <= word.column and word.end_column <= found.end()
    )
    words = [found.span() for found in _WORD.finditer(text, *match.span(group))]
    if len(words) > 1:
        index = words.index((word.column, word.end_column))
        start, end = (words[index - 1][1], words[index][1]) if index else (words[0][0], words[1][0])
    else:
        reason = None if suppression.is_noqa else _WHOLE_REASON.match(text, match.end())
        return _removed(file, span.line, match.start(), reason.end() if reason else match.end())
    return Edit(Place(file.path, Span(span.line, start, span.line, end)), "")


def _whole_removal(file: SourceFile, line: int, start: int, match: re.Match[str]) -> Edit:
    """Remove a comment of ours that begins at `start`, with its reason."""
    text, end = file.line(line), start + len(match[0])
    reason = _WHOLE_REASON.match(text, end)
    return _removed(file, line, start, reason.end() if reason else end)


def _removed(file: SourceFile, line: int, start: int, end: int) -> Edit:
    """Without a part of a comment: the blanks before it go too, or the line when nothing else is on it."""
    text = file.line(line)
    before, after = text[:start].rstrip(), text[end:].lstrip()
    if not before and not after:
        return Edit(Place(file.path, Span(line, 0, line + 1, 0)), "")
    start, end = (start, len(text) - len(after)) if after else (len(before), len(text))
    return Edit(Place(file.path, Span(line, start, line, end)), "")


def _span(comment: Comment) -> Span:
    return Span(comment.line, comment.column, comment.line, comment.column + len(comment.text))
