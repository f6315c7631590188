"""All runs of one file, and their memory: a run is repeated only when something that it read changed.

A file is run in parts: its definitions (imports, functions, classes, assignments), the code behind them, then
each function and class that nobody called. Each of the latter starts from what the module left, so none
depends on another; ids and orders of events follow from the number of the run alone. A result therefore
holds as long as its start is the same and so is the source of everything it entered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, cast

from torchwise_analysis.findings import Place
from torchwise_analysis.interp.abstract import entries
from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.alike import alike
from torchwise_analysis.interp.abstract.entries import FunctionKey
from torchwise_analysis.interp.abstract.expressions import EXPRESSIONS
from torchwise_analysis.interp.abstract.imports import is_main
from torchwise_analysis.interp.abstract.limits import TOO_MANY, Limits
from torchwise_analysis.interp.abstract.machine import SHARED_IDS, Base, Counts, Machine, passed_lines
from torchwise_analysis.interp.abstract.places import settled
from torchwise_analysis.interp.abstract.recall import Parts, Recall, changed_parts, noted
from torchwise_analysis.interp.abstract.relevance import Relevance
from torchwise_analysis.interp.abstract.state import MISSING, Facts
from torchwise_analysis.interp.abstract.statements import STATEMENTS
from torchwise_analysis.interp.abstract.static import BodyFacts, StaticCache, outer_facts
from torchwise_analysis.interp.abstract.trace import Silence, Trace
from torchwise_analysis.interp.abstract.units import Change, Source
from torchwise_analysis.names.project import Project
from torchwise_analysis.semantics.dispatch import LIBRARY
from torchwise_analysis.source import nodes as nd

# Tables with nodes in their keys.
_BY_NODE = ("_loops",)
_MOST_COMPARED = 2_000  # events
# Results of a part that are kept besides the present one.
_MOST_EARLIER = 2

# Facts that each entry sets anew or that only mean something within one run.
_PASSING = frozenset(["mode", "grad", "freed", "version", "autograd", "stepped", "lambda"])


@dataclass(slots=True, eq=False)
class Content:
    """What happened in a run. One object as long as the same happens: who reads it need not look again.

    unfinished: callees that never came to their end, so that they are still to be run by themselves.
    """

    last_id: int
    goes_on: bool
    reached: frozenset[FunctionKey]
    unfinished: frozenset[FunctionKey]
    tables: dict[str, Any]
    facts: Facts
    events: tuple[ev.Event, ...]
    end: Base | None = None

    def is_like(self, other: Content) -> bool:
        """Did the same happen?"""
        if len(self.events) != len(other.events) or len(self.events) > _MOST_COMPARED:
            return False
        return alike(self._parts(), other._parts())

    def _parts(self) -> tuple[object, ...]:
        tables = [table for name, table in self.tables.items() if name not in _BY_NODE]
        reached = self.reached, self.unfinished
        return self.last_id, self.goes_on, reached, tables, self.facts, self.events

    def take_nodes(self, other: Content) -> None:
        """Know things by the nodes of another run in which the same happened: those of the present source."""
        for name in _BY_NODE:
            self.tables[name] = other.tables[name]
            if self.end is not None and other.end is not None:
                self.end.put_table(name, other.end.tables[name])
            elif self.end is not None:
                self.end = None


@dataclass(slots=True, eq=False)
class Result:
    """What one run added to its base, and what it rests on.

    given: what decided it besides the source. share: visits it could spend; events_left: events it could
    record. aborted_before: callees that earlier runs gave up, of those reached here. asked: what may matter.
    passed: lines of other files' statements that were executed.
    """

    base: Base | None
    given: tuple[object, ...]
    share: int
    events_left: int
    aborted_before: dict[FunctionKey, int]
    read: dict[va.Code[Any], int]
    asked: dict[tuple[frozenset[str], int], bool]
    relevance: Relevance
    loaded: dict[str, nd.Module | None]
    passed: dict[str, int]
    aborted: dict[FunctionKey, int]
    visits: int
    counts: Counts
    content: Content

    def state_after(self) -> Base:
        """Where a run that goes on behind this one starts."""
        content = self.content
        if content.end is None:
            assert self.base is not None  # the first run has its end from the beginning
            facts = dict(self.base.facts)
            _apply(facts, content.facts)
            tables = {name: _joined(table, content.tables[name]) for name, table in self.base.tables.items()}
            content.end = Base(facts, tables, content.last_id, self.base.scope)
        return content.end


@dataclass(frozen=True, slots=True)
class _Last:
    """A trace, and what it was joined from."""

    contents: tuple[Content, ...]
    layout: tuple[object, ...]
    trace: Trace


@dataclass(frozen=True, slots=True)
class _Step:
    """One run of an entry, as it was asked for.

    behind: number of the step whose end it starts from, if it does not start from that of the module.
    """

    key: tuple[str, int]
    base: Base
    behind: int | None
    given: tuple[object, ...]
    run: Callable[[Machine], None]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The runs of entries in order, and what they followed from besides their own results."""

    base: Base
    called: frozenset[str]
    elsewhere: frozenset[FunctionKey]
    copies: int
    steps: tuple[_Step, ...]
    contents: tuple[Content, ...]
    aborted: tuple[dict[FunctionKey, int], ...]

    def holds_for(self, base: Base, called: frozenset[str], elsewhere: frozenset[FunctionKey]) -> bool:
        return self.base is base and self.called == called and self.elsewhere == elsewhere


@dataclass(slots=True)
class Memory:
    """What the runs of one file leave for its next text.

    ran: names of what had to be run for the last one. earlier: results that held before edits, which may be
    undone. recall: for a file under edit, what its rules found.
    """

    project: Project | None = None
    project_version: int = -1
    limits: Limits | None = None
    source: Source = field(default_factory=Source)
    relevance: Relevance | None = None
    results: dict[tuple[str, int], Result] = field(default_factory=dict[tuple[str, int], Result])
    earlier: dict[tuple[str, int], tuple[Result, ...]] = field(
        default_factory=dict[tuple[str, int], tuple[Result, ...]]
    )
    ran: list[str] = field(default_factory=list[str])
    last: _Last | None = None
    plan: _Plan | None = None
    recall: Recall | None = None

    def prepare(self, module: nd.Module, project: Project, limits: Limits) -> bool:
        """Make `module` the text, and forget what does not hold for it in any case. Was there another?"""
        if project is not self.project or limits != self.limits:
            self.forget()
        self.project, self.limits = project, limits
        is_first = not self.source.units
        change = self.source.take(module)
        if change is Change.MODULE or self._is_elsewhere_changed(project):
            self.results.clear()
            self.earlier.clear()
            self.plan = None
            self.relevance = None
            self.last = None
        self.project_version = project.version
        self.ran.clear()
        return not is_first and change is not Change.NOTHING

    def forget(self) -> None:
        """Remember nothing."""
        self.project, self.source, self.relevance, self.last = None, Source(), None, None
        self.results.clear()
        self.earlier.clear()
        self.plan = None

    def _is_elsewhere_changed(self, project: Project) -> bool:
        """Did another file that was read change?"""
        if project.version != self.project_version or self.relevance is None:
            return True
        loaded: dict[str, nd.Module | None] = dict(self.relevance.files)
        for result in self.results.values():
            loaded.update(result.loaded)
        return any(project.load(path) is not module for path, module in loaded.items())


class FileRun:
    """Brings the results of one file up to date. Lives for one call of `abstract.run`."""

    def __init__(
        self,
        path: str,
        project: Project,
        limits: Limits,
        stop: Callable[[], bool],
        static: StaticCache,
        reached: frozenset[FunctionKey],
        memory: Memory,
    ) -> None:
        self._path, self._project, self._limits, self._stop = path, project, limits, stop
        self._static, self._elsewhere, self._memory = static, reached, memory
        self._source = memory.source
        self._results: list[Result] = []
        self._reached: set[FunctionKey] = set()
        self._aborted: dict[FunctionKey, int] = {}
        self._visits = self._events = self._copies = 0
        self._steps: list[_Step] = []
        self._left_out: list[Place] = []
        self.is_complete = False

    def run(self) -> None:
        """Run what must be run: the module's code, then functions that nobody calls, then the rest."""
        self._run()
        self.is_complete = True

    def _run(self) -> None:
        self._find_relevant()
        base = self._module()
        called = frozenset[str]().union(*(unit.called for unit in self._source.units))
        plan = self._memory.plan
        if plan is not None and plan.holds_for(base, called, self._elsewhere):
            before = len(self._results), set(self._reached), dict(self._aborted), self._visits, self._events
            if self._replay(plan):
                return
            number, self._reached, self._aborted, self._visits, self._events = before
            del self._results[number:]
        self._run_entries(base, called)

    def _replay(self, plan: _Plan) -> bool:
        """The runs of the last text once more, for as long as the same happens in each: then none of them
        decides otherwise which others there are. Was it so to the end?"""
        first = len(self._results)
        for step, content, aborted in zip(plan.steps, plan.contents, plan.aborted, strict=True):
            base = step.base
            if step.behind is not None:
                base = self._results[first + step.behind].state_after()
            result = self._result(step.key, step.key[1], base, step.given, step.run)
            if result.content is not content or result.aborted != aborted:
                return False
            self._add(result)
        self._copies = plan.copies
        return True

    def _run_entries(self, base: Base, called: frozenset[str]) -> None:
        definitions = list(entries.definitions(self._source.body, 0))
        visited: dict[int, tuple[int, Result]] = {}
        first = len(self._results)
        for visit in (0, 1):
            for index, (node, _) in enumerate(definitions):
                if visit == 0 and node.name in called:
                    continue
                number = 2 + visit * len(definitions) + index
                value = base.facts.get(("v", base.scope[0], node.name))
                if isinstance(value, va.Function):
                    self._function(base.for_functions(), value, number)
                elif isinstance(value, va.Class):
                    result = self._class(base, visited.get(index), value, number, called, visit)
                    if result is not None:
                        visited[index] = len(self._results) - 1 - first, result
        made = self._results[first:]
        self._memory.plan = (
            None
            if self._left_out
            else _Plan(
                base,
                called,
                self._elsewhere,
                self._copies,
                tuple(self._steps),
                tuple(result.content for result in made),
                tuple(result.aborted for result in made),
            )
        )

    def trace(self) -> Trace:
        """What happened in all runs together; the trace of the last text again, when that is the same."""
        contents = tuple(result.content for result in self._results)
        layout = self._source.ground.layout
        silence = self._silence()
        last, recall = self._memory.last, self._memory.recall
        edited: Parts = set(self._source.edited)
        is_same = last is not None and _is_same(last.contents, contents)
        if recall is not None and not is_same:
            recall.drop(self._changed(contents, silence, edited))
        elif recall is not None and recall.rests_on(edited):
            recall.drop(edited)
            is_same = False
        if self.is_complete:
            self._source.edited.clear()
        if last is None or not is_same:
            last = self._memory.last = _Last(contents, layout, self._joined(silence))
        elif last.layout != layout:
            # no place in it changed, and what follows from it holds
            trace = replace(last.trace, reached=self._reached_in_document())
            last = self._memory.last = _Last(contents, layout, trace)
        return replace(last.trace, silence=silence, passed=self._passed())

    def _reached_in_document(self) -> frozenset[FunctionKey]:
        return frozenset(self._in_document(key) for key in self._reached)

    def _passed(self) -> dict[str, int]:
        passed: dict[str, int] = {}
        for result in self._results:
            for path, lines in result.passed.items():
                passed[path] = passed.get(path, 0) | lines
        return passed

    def _changed(self, contents: tuple[Content, ...], silence: Silence, edited: Parts) -> Parts | None:
        """What is different from the last trace; None if that is not known."""
        last = self._memory.last
        changed = None if last is None or not self.is_complete else changed_parts(last.contents, contents)
        if last is None or changed is None:
            return None
        return changed | edited | ({"silence"} if last.trace.silence != silence else set())

    def _silence(self) -> Silence:
        counts = Counts()
        for result in self._results:
            counts.add(result.counts)
        broken = self._source.broken
        counts.not_analysed += [(Place(self._path, b.span), f"does not parse: {b.message}") for b in broken]
        counts.not_analysed = [(settled(place), reason) for place, reason in counts.not_analysed]
        counts.not_analysed += [(place, TOO_MANY) for place in self._left_out]
        is_spent = self._visits >= self._limits.visits or bool(self._left_out)
        return counts.silence(self._visits, is_spent)

    def _has_room(self, base: Base, code: va.Code[Any]) -> bool:
        """Is there fuel for one more run from a copy of `base`? A file of 20,000 functions has 20,000 facts
        for each of them to start from."""
        self._copies += len(base.facts)
        if self._copies <= self._limits.copies:
            return True
        self._left_out.append(Place(self._path, _header(code)))
        return False

    def _joined(self, silence: Silence) -> Trace:
        tables: dict[str, Any] = {name: {} for name in ("passes", "objects", "parents", "owns", "modules")}
        united: dict[str, set[Any]] = {
            name: set() for name in ("consumed", "backed", "escaped_passes", "escaped_tokens", "escaped")
        }
        facts: Facts = {}
        for result in self._results:
            content = result.content
            for name, table in tables.items():
                table.update(content.tables[name])
            for name, members in united.items():
                members |= content.tables[name]
            _apply(facts, content.facts)
        trace = Trace(
            path=self._path,
            events=tuple(event for result in self._results for event in result.content.events),
            passes=tables["passes"],
            objects=tables["objects"],
            parents=tables["parents"],
            consumed=frozenset(united["consumed"]),
            backed=frozenset(united["backed"]),
            escaped_passes=frozenset(united["escaped_passes"]),
            escaped_tokens=frozenset(united["escaped_tokens"]),
            escaped=frozenset(united["escaped"]),
            owns=tables["owns"],
            facts=facts,
            silence=silence,
            analysed_files=(self._path, *tables["modules"]),
            reached=self._reached_in_document(),
            ground=self._source.ground,
        )
        recall = self._memory.recall
        return trace if recall is None else noted(trace, recall)

    # ------------------------------------------------------------------ what runs

    def _find_relevant(self) -> None:
        memory = self._memory
        own = [unit.mentions for unit in self._source.units]
        if memory.relevance is None or not memory.relevance.holds_for(own):
            memory.relevance = Relevance(self._path, own, self._project, self._limits.mentions, self._static)

    def _module(self) -> Base:
        """Run the code of the module; where the entries start."""
        body = self._source.body
        facts = outer_facts(body)
        end = _end_of_definitions(body)
        if end:
            first = self._stage("definitions", 0, None, body[:end], facts)
            if first.content.goes_on:
                self._add(first)
                rest = self._stage("rest", 1, first.state_after(), body[end:], facts)
                self._add(rest)
                return (
                    first.state_after()
                    if _leaves_nothing(rest.content, first.content)
                    else rest.state_after()
                )
        whole = self._stage("module", 0, None, body, facts)
        self._add(whole)
        return whole.state_after()

    def _stage(self, name: str, number: int, base: Base | None, body: nd.Block, facts: BodyFacts) -> Result:
        def run(m: Machine) -> None:
            m.codes = self._source.codes
            entries.module_code(m, body, facts, base.scope if base is not None else None)

        return self._result((name, number), number, base, (), run)

    def _function(self, base: Base, function: va.Function, number: int) -> None:
        if function.key in self._reached or self._is_reached_elsewhere(function):
            return
        if not self._has_room(base, function.code):
            return

        def run(m: Machine) -> None:
            place = m.located(_header(function.code), m.path)
            entries.contained(m, place, lambda: entries.function_entry(m, function, place))

        self._step(_Step((function.name, number), base, None, (), run), base)

    def _class(
        self,
        base: Base,
        before: tuple[int, Result] | None,
        cls: va.Class,
        number: int,
        called: frozenset[str],
        visit: int,
    ) -> Result | None:
        found = entries.open_methods(base, cls, self._reached)
        if self._elsewhere:
            found = [one for one in found if not self._is_reached_elsewhere(one[0])]
        if not found or not self._has_room(base, cls.code):
            return None
        waiting = called.intersection([name for _, _, name in found])

        def run(m: Machine) -> None:
            place, todo = m.located(_header(cls.code), m.path), [f for f, _, _ in found]
            is_first, inherits = visit == 0, before is None
            entries.contained(
                m, place, lambda: entries.class_entry(m, cls, place, todo, waiting, is_first, inherits)
            )

        given = (tuple(key for _, key, _ in found), waiting)
        behind, start = (None, base) if before is None else (before[0], before[1].state_after())
        return self._step(_Step((cls.name, number), base, behind, given, run), start)

    def _step(self, step: _Step, base: Base) -> Result:
        result = self._result(step.key, step.key[1], base, step.given, step.run)
        self._steps.append(step)
        self._add(result)
        return result

    # ------------------------------------------------------------------ results

    def _add(self, result: Result) -> None:
        self._results.append(result)
        self._reached |= result.content.reached - result.content.unfinished
        self._aborted.update(result.aborted)
        self._visits += result.visits
        self._events += len(result.content.events)

    def _result(
        self,
        key: tuple[str, int],
        number: int,
        base: Base | None,
        given: tuple[object, ...],
        run: Callable[[Machine], None],
    ) -> Result:
        """The remembered result if it holds, else that of a run now."""
        limits = self._limits
        share = limits.entry_visits if self._visits < limits.visits // 2 else limits.late_visits
        share = max(0, min(share, limits.visits - self._visits))
        known = self._memory.results.get(key)
        if known is not None and self._holds(known, base, given, share):
            return known
        for one in self._memory.earlier.get(key, ()):
            if self._holds(one, base, given, share):
                self._put_back(key, one)
                return one
        relevance = self._memory.relevance
        assert relevance is not None
        m = Machine(
            self._path,
            self._project,
            limits,
            self._stop,
            EXPRESSIONS,
            STATEMENTS,
            relevance,
            LIBRARY,
            self._static,
            self._source.ground,
            number,
            base,
        )
        m.cap, m.events_left, m.aborted = share, limits.events - self._events, dict(self._aborted)
        self._memory.ran.append(key[0])
        run(m)
        result = self._kept(m, base, given, share)
        if known is not None and known.base is base and known.content.is_like(result.content):
            known.content.take_nodes(result.content)
            result.content = known.content
            self._memory.results[key] = result
        else:
            self._put_back(key, result)
        return result

    def _put_back(self, key: tuple[str, int], result: Result) -> None:
        """Make this the present result; that so far becomes an earlier one, if an undone edit may need it."""
        memory = self._memory
        known = memory.results.get(key)
        memory.results[key] = result
        if memory.recall is None or known is None:  # nobody edits
            return
        others = (one for one in memory.earlier.get(key, ()) if one is not result)
        memory.earlier[key] = (known, *others)[:_MOST_EARLIER]

    def _kept(self, m: Machine, base: Base | None, given: tuple[object, ...], share: int) -> Result:
        end = Base.of(m)
        before = base.tables if base is not None else {}
        return Result(
            base=base,
            given=given,
            share=share,
            events_left=m.events_left,
            aborted_before=_among(self._aborted, m.reached),
            read=m.read,
            asked=m.asked,
            relevance=m.relevance,
            loaded=m.loaded,
            passed=passed_lines(m.passed),
            aborted={key: count for key, count in m.aborted.items() if self._aborted.get(key) != count},
            visits=m.visits,
            counts=m.counts,
            content=Content(
                last_id=m.last_id,
                goes_on=m.goes_on,
                reached=frozenset(m.reached),
                unfinished=frozenset(key for key, _ in m.unfinished - m.finished),
                tables={name: _added(table, before.get(name)) for name, table in end.tables.items()},
                facts={**{key: m.state.get(key, MISSING) for key in m.state.lasting}, **m.state.changes(0)},
                events=tuple(m.events),
                end=end if base is None else None,
            ),
        )

    def _holds(self, result: Result, base: Base | None, given: tuple[object, ...], share: int) -> bool:
        left = self._limits.events - self._events
        if result.base is not base or result.given != given or result.share != share:
            return False
        if result.events_left != left and len(result.content.events) >= min(result.events_left, left):
            return False
        if any(code.version != version for code, version in result.read.items()):
            return False
        if result.aborted_before != _among(self._aborted, result.content.reached):
            return False
        relevance = self._memory.relevance
        assert relevance is not None
        if result.relevance is not relevance:
            if any(relevance.matters(*question) is not answer for question, answer in result.asked.items()):
                return False
            result.relevance = relevance
        return True

    def _is_reached_elsewhere(self, function: va.Function) -> bool:
        return bool(self._elsewhere) and self._in_document(function.key) in self._elsewhere

    def _in_document(self, key: FunctionKey) -> FunctionKey:
        path, line, column, name = key
        return (path, self._source.ground.line(line), column, name) if path == self._path else key


# --------------------------------------------------------------------------- parts of a module


def _header(code: va.Code[Any]) -> nd.Span:
    """Where a definition's first line stands in its block, in the present text."""
    header: nd.Span = code.node.header
    return header.shifted(code.line)


def _end_of_definitions(body: nd.Block) -> int | None:
    """Where what the module does begins, behind what it defines."""
    for index, placed in enumerate(body):
        assert isinstance(placed, nd.Placed)
        if any(_does(statement) for statement in placed.body):
            return index
    return None


def _does(statement: nd.Stmt) -> bool:
    if isinstance(statement, nd.If):
        return is_main(statement.test)
    if isinstance(statement, nd.ExprStmt):
        return isinstance(statement.value, nd.Call) and isinstance(statement.value.func, nd.Name)
    return isinstance(statement, (nd.For, nd.While, nd.With))


def _leaves_nothing(rest: Content, before: Content) -> bool:
    """Does an entry find the same whether it starts before or behind `rest`?"""
    own = before.last_id
    for key, value in rest.facts.items():
        kind, owner = key[0], key[1] if len(key) > 1 else 0
        if kind in _PASSING:
            continue
        if isinstance(owner, int) and own < owner < SHARED_IDS:
            continue  # of something made there, which nothing from before holds
        if kind in ("a", "v") and isinstance(value, va.Obj) and value.id >= SHARED_IDS:
            continue  # whoever asks for it gets the same
        if isinstance(before.facts.get(key), va.Deferred):
            continue  # whoever asks for it finds it out
        return False
    return not any(
        key <= own
        for name in ("objects", "parents", "owns", "wrapped", "in_place", "engines", "prepared")
        for key in rest.tables[name]
    ) and len(rest.tables["hooks"]) == len(before.tables["hooks"])


# --------------------------------------------------------------------------- tables


def _is_same(a: tuple[Content, ...], b: tuple[Content, ...]) -> bool:
    return len(a) == len(b) and all(one is other for one, other in zip(a, b, strict=True))


def _added(table: Any, before: Any) -> Any:
    """What a table holds that it did not before; lists as a whole."""
    if before is None:
        return table
    if isinstance(table, list):
        return cast("list[object]", table)
    if isinstance(table, set):
        return cast("set[object]", table) - before
    return {key: value for key, value in table.items() if before.get(key, MISSING) is not value}


def _joined(before: Any, added: Any) -> Any:
    if isinstance(added, list):
        return cast("list[object]", added)
    return before | added


def _apply(facts: Facts, changes: Facts) -> None:
    for key, value in changes.items():
        if value is MISSING:
            facts.pop(key, None)
        else:
            facts[key] = value


def _among(counts: dict[FunctionKey, int], keys: Collection[FunctionKey]) -> dict[FunctionKey, int]:
    return {key: count for key, count in counts.items() if key in keys}
