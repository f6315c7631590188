"""Truth, comparison, worlds and guards.

A test is decided when its operands are known, when a counter's witness decides it, or when the world
of the running function fixes the flag. What stays undecided forks and leaves guards on both sides.
"""

from __future__ import annotations

import re
from typing import cast

from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.frames import World
from torchwise_analysis.interp.abstract.join import union
from torchwise_analysis.interp.abstract.machine import Machine, first_known
from torchwise_analysis.interp.abstract.state import Key
from torchwise_analysis.interp.abstract.static import names_in, text_of
from torchwise_analysis.interp.core import constants
from torchwise_analysis.quick import replace
from torchwise_analysis.source import nodes as nd

_WITNESS = 2

# place, kind, symbol and polarity of one test; whether ranks part there; how a counter is tested
Tested = tuple[nd.Expr, str, "str | None", bool, bool, str]

_TRAINING = frozenset(["train", "new"])


def truth(m: Machine, value: va.Value) -> bool | None:
    """Known truth of a value."""
    if isinstance(value, va.Const):
        return bool(value.value)
    if isinstance(value, va.ModeValue):
        names = {mode.name for mode in value.modes}
        if names <= _TRAINING:
            return not value.negated
        if names <= {"eval", "pretrained"}:
            return value.negated
        return None
    if isinstance(value, (va.Function, va.Class, va.Library, va.StateDict, va.Method)):
        return True
    if isinstance(value, va.Obj):
        if value.kind in (va.Kind.LIST, va.Kind.TUPLE, va.Kind.DICT, va.Kind.SET):
            if m.items(value) or m.entries(value):
                return None if m.state.get(("open", value.id)) else True
            return None
        return (
            True if value.place is not None and value.kind not in (va.Kind.ITERATOR, va.Kind.OPAQUE) else None
        )
    if isinstance(value, va.Union):
        truths = {truth(m, v) for v in value.values}
        return truths.pop() if len(truths) == 1 else None
    return None


def test(m: Machine, node: nd.Expr, decide: bool = True) -> tuple[bool | None, va.Value]:
    """Evaluate a condition. What was tested is kept for `guarded` until the next test."""
    m.tested = []
    return _test(m, node, decide, True)


def _test(m: Machine, node: nd.Expr, decide: bool, polarity: bool) -> tuple[bool | None, va.Value]:
    if isinstance(node, nd.BoolOp):
        wanted = node.op == "or"
        result: bool | None = not wanted
        value: va.Value = va.UNKNOWN
        for operand in node.values:
            known, value = _test(m, operand, decide, polarity)
            if known is wanted:
                return wanted, value
            if known is None:
                result = None
        return result, va.UNKNOWN if result is None else va.Const(None, result)
    if isinstance(node, nd.Unary) and node.op == "not":
        known, value = _test(m, node.operand, decide, not polarity)
        return (None if known is None else not known), value
    value = m.eval(node)
    known = truth(m, value)
    tests = cast("list[Tested]", m.tested)
    if not (isinstance(value, va.Const) and value.counter is None):
        kind, symbol = _classify(m, value, node)
        if kind in ("value", "flag") and _is_carried(m, node):
            kind = "periodic"
        tests.append(
            (node, kind, symbol, polarity, _parts_ranks(m, value, node), _how_tested(m, value, node))
        )
    if isinstance(value, va.Tensor) and va.SKIPPED not in value.taint:
        m.library.host_sync(m, value, node, "if")
    if known is None and decide:
        known = _decide(m, value, node)
    return known, value


def _is_carried(m: Machine, node: nd.Expr) -> bool:
    """Does the test compare what the turns of a loop of this function hand on to each other?"""
    if not isinstance(node, nd.Compare):
        return False
    carried = [turn.loop.carried for turn in m.loops[len(m.frames[-1].loops) :] if turn.loop.carried]
    return any(not names.isdisjoint(names_in(node)) for names in carried)


def last_tests(m: Machine) -> list[Tested]:
    return list(cast("list[Tested]", m.tested))


def guarded(
    m: Machine, guards: tuple[ev.Guard, ...], tests: list[Tested], taken: bool, ends: bool = False
) -> tuple[ev.Guard, ...]:
    """The guards with these tests passed. `ends`: the other side ends the loop or the run."""
    if not tests:
        return guards
    return (
        *guards,
        *(
            ev.Guard(
                m.place(n),
                kind,
                taken is polarity,
                symbol,
                parts,
                len(guards),
                how,
                len(m.loops),
                ends,
                how == "counted" and (taken is polarity) is not _is_once(n),
            )
            for n, kind, symbol, polarity, parts, how in tests
        ),
    )


def _is_once(node: nd.Expr) -> bool:
    """Does a test of a counter hold once in a period, as `i % k == 0` does, unlike `i % k`?"""
    if isinstance(node, nd.Compare):
        return node.ops[0] not in ("!=", "<", "<=")
    return not isinstance(node, nd.Binary)


def _how_tested(m: Machine, value: va.Value, node: nd.Expr) -> str:
    if isinstance(value, va.Const):
        return "counted"
    if isinstance(node, nd.Name) and m.forward is not None:
        return "name"
    return node.ops[0] if isinstance(node, nd.Compare) and len(node.ops) == 1 else ""


def _parts_ranks(m: Machine, value: va.Value, node: nd.Expr) -> bool:
    """Does a test come out differently on the ranks? `local_rank != -1` and `rank is not None` ask whether
    there are several."""
    if "this rank" not in m.taint(value):
        return False
    if not isinstance(node, nd.Compare):
        return True
    sides = (node.left, *node.comparators)
    absent = any(
        (isinstance(s, nd.Constant) and s.value is None)
        or (isinstance(s, nd.Unary) and s.op == "-" and isinstance(s.operand, nd.Constant))
        for s in sides
    )
    from_zero = any(isinstance(s, nd.Constant) and s.value == 0 for s in sides)
    return not absent and not (from_zero and node.ops[0] in (">=", "<"))


def _classify(m: Machine, value: va.Value, node: nd.Expr) -> tuple[str, str | None]:
    if "rank" in m.taint(value):
        return "rank", None
    if isinstance(value, va.Const):
        return ("periodic" if value.counter else "value"), None
    if isinstance(value, va.ModeValue):
        return "training", None
    if isinstance(value, va.Unknown):
        if value.varies or "counter" in value.taint:
            return "periodic", value.symbol
        if value.symbol and value.symbol.endswith(" is None"):
            return "none", value.symbol
        return ("flag" if value.symbol else "value"), value.symbol
    if isinstance(value, va.Obj) and value.symbol:
        return "flag", value.symbol
    if isinstance(node, nd.Compare) and any(
        isinstance(c, nd.Constant) and c.value is None for c in node.comparators
    ):
        return "none", None
    return "value", None


def _decide(m: Machine, value: va.Value, node: nd.Expr) -> bool | None:
    """The truth that the world of the running function gives to a flag tested more than once."""
    symbol, negated = None, False
    if isinstance(value, va.Unknown) and not value.varies and not value.offset:
        symbol, negated = value.symbol, value.negated
    elif isinstance(value, va.Obj) and value.kind is va.Kind.OPAQUE:
        symbol = value.symbol
    elif isinstance(value, va.Union):
        symbol = _settled(m, value, node)
    if symbol is None:
        return None
    for known, flag in reversed(m.world):
        if known == symbol:
            return flag is not negated
    implied = _implied(m.world, symbol)
    if implied is not None:
        return implied is not negated
    frame = m.frames[-1]
    text = text_of(node)
    if text is None or frame.budget <= 0 or len(m.world) >= 3:
        return None
    # what comes out of the data may differ in each turn
    is_same = len(m.loops) > len(frame.loops) and "[]" not in symbol
    if text not in frame.facts.repeated and not (text in frame.facts.looped and is_same):
        return None
    frame.budget -= 1
    frame.worlds *= 2
    frame.decided.append(symbol)
    m.world = (*m.world, (symbol, True))
    return not negated


def _settled(m: Machine, value: va.Union, node: nd.Expr) -> str | None:
    """The identity of a setting with several known values, which the running function leaves as it was.

    `fp16: bool = True` in a data class, and `args.fp16 = False` somewhere before: either, but one of them.
    """
    frame, text = m.frames[-1], text_of(node)
    may_decide = frame.budget > 0 and (text in frame.facts.repeated or text in frame.facts.looped)
    if text is None or not (may_decide or m.world):
        return None
    if not all(isinstance(v, (va.Const, va.Unknown)) and not _changes(v) for v in value.values):
        return None
    keys = _holding(m, node)
    symbol = ",".join(f"{key[0]}:{key[1]}:{key[2]}" for key in keys)
    if not keys or not (may_decide or any(known == symbol for known, _ in m.world)):
        return None
    return symbol if m.state.changes(frame.mark).keys().isdisjoint(keys) else None


def _changes(value: va.Value) -> bool:
    """Is it counted, or of the data?"""
    return value.counter is not None if isinstance(value, va.Const) else not _is_setting(value)


def _holding(m: Machine, node: nd.Expr) -> tuple[Key, ...]:
    """The facts that hold the value of a name or of an attribute of something known."""
    facts = m.state.facts
    if isinstance(node, nd.Name):
        found = next((s for s in m.frames[-1].scope if ("v", s, node.id) in facts), None)
        return () if found is None else (("v", found, node.id),)
    if not isinstance(node, nd.Attribute):
        return ()
    owners = [one for key in _holding(m, node.value) for one in va.alternatives(cast("va.Value", facts[key]))]
    keys = tuple(("a", owner.id, node.attr) for owner in owners if isinstance(owner, va.Obj))
    return keys if len(keys) == len(owners) and all(key in facts for key in keys) else ()


_COUNT_TEST = re.compile(r"(.+) (==|<|<=|>|>=) (\d{1,3})")


def _implied(world: World, symbol: str) -> bool | None:
    """What comparisons of one count with small numbers say about another: `n > 1` and `n == 1`.

    A count that is compared with numbers above 0 only is taken to be at least 1.
    """
    asked = _COUNT_TEST.fullmatch(symbol)
    if asked is None:
        return None
    settled = [
        (known, flag)
        for known, flag in ((_COUNT_TEST.fullmatch(s), f) for s, f in world)
        if known is not None and known[1] == asked[1]
    ]
    if not settled:
        return None
    numbers = [int(test[3]) for test in (asked, *(known for known, _ in settled))]
    possible = range(0 if 0 in numbers else 1, max(numbers) + 2)
    fitting = [n for n in possible if all(_holds(known, n) is flag for known, flag in settled)]
    answers = {_holds(asked, n) for n in fitting}
    return answers.pop() if len(answers) == 1 else None


def _holds(test: re.Match[str], value: int) -> bool:
    return constants.compare(test[2], value, int(test[3])) is True


def fixed(m: Machine, symbol: str) -> bool | None:
    """What the world says about a symbol."""
    for known, flag in reversed(m.world):
        if known == symbol:
            return flag
    return None


# --------------------------------------------------------------------------- comparison


def compare(m: Machine, op: str, left: va.Value, right: va.Value, node: nd.Node) -> va.Value:
    """One comparison of a chain."""
    if op in ("is", "is not", "==", "!=") and isinstance(right, va.Const) and right.value is None:
        return _compare_none(op in ("is", "=="), left)
    if isinstance(left, va.Tensor) or isinstance(right, va.Tensor):
        if op in ("is", "is not", "in", "not in"):
            return va.UNKNOWN
        sides = [side for side in (left, right) if isinstance(side, va.Tensor)]
        lead = next((side for side in sides if side.passes), None)
        lead = lead or next((side for side in sides if side.cut is not None), sides[0])
        return m.library.compared(m, lead, node)
    if isinstance(left, va.Union) or isinstance(right, va.Union):
        results = {
            truth(m, compare(m, op, a, b, node))
            for a in va.alternatives(left)
            for b in va.alternatives(right)
        }
        if len(results) == 1 and None not in results:
            return va.Const(None, results.pop())
        are_ranks = "this rank" in m.taint(left) and "this rank" in m.taint(right)
        left, right = first_known(left), first_known(right)
        if isinstance(left, va.Const) and isinstance(right, va.Const):
            return va.UNKNOWN
        if are_ranks:
            flag = _flag(m, op, left, right)
            return replace(flag, taint=flag.taint - {"this rank"})
    if isinstance(left, va.Const) and isinstance(right, va.Const):
        return _compare_constants(op, left, right)
    if isinstance(left, va.Const) and left.counter and isinstance(right, (va.Unknown, va.Obj)):
        return _compare_counter(m, op, left, right)
    if isinstance(left, va.Unknown) and isinstance(right, va.Const) and right.counter:
        return replace(_flag(m, op, left, right), varies=True)
    if isinstance(left, va.Const) and isinstance(right, va.Obj) and op in ("in", "not in"):
        items = m.items(right)
        if items and all(isinstance(i, va.Const) for i in items) and not m.state.get(("open", right.id)):
            found = any(cast("va.Const", i).value == left.value for i in items)
            return va.Const(None, found is (op == "in"), left.counter)
        entries = m.entries(right)
        if entries and left.value in entries:
            return va.Const(None, op == "in")
    return _flag(m, op, left, right)


def _flag(m: Machine, op: str, left: va.Value, right: va.Value) -> va.Unknown:
    """An undecided comparison, named so that its repetitions agree."""
    symbol = left.symbol if isinstance(left, (va.Unknown, va.Obj)) else None
    taint = m.taint(left, right)
    # asks whether there are several, or how groups lie, with one answer on all of them
    if _is_no_rank(op, right) or ("this rank" in m.taint(left) and "this rank" in m.taint(right)):
        taint -= {"this rank"}
    varies = any(isinstance(v, va.Unknown) and v.varies for v in (left, right))
    if symbol and isinstance(right, va.Const):
        plain = {"!=": "==", "is not": "is", "not in": "in"}.get(op, op)
        offset = f"+{left.offset}" if isinstance(left, va.Unknown) and left.offset else ""
        return va.unknown(f"{symbol}{offset} {plain} {right.value!r}"[:120], 0, plain != op, taint, varies)
    choices = _choices(m, right) if symbol and op in ("in", "not in") else None
    if choices:
        return va.unknown(f"{symbol} in {choices}"[:120], 0, op == "not in", taint, varies)
    other = right.symbol if isinstance(right, (va.Unknown, va.Obj)) else None
    if symbol and other and _is_setting(left) and _is_setting(right):
        return va.unknown(f"{symbol} {op} {other}"[:120], 0, False, taint, varies)
    return va.unknown(None, taint=taint, varies=varies)


def _is_no_rank(op: str, value: va.Value) -> bool:
    """Is a rank compared with what no rank is: a number below 0, or whether it is below 0?"""
    number = value.value if isinstance(value, va.Const) else None
    if not isinstance(number, int) or isinstance(number, bool):
        return False
    return number < 0 or (number == 0 and op in (">=", "<"))


def _choices(m: Machine, value: va.Value) -> str | None:
    """The constants of a list that is known whole, in words."""
    if not isinstance(value, va.Obj) or m.state.get(("open", value.id)):
        return None
    items = m.items(value)
    if not items or not all(isinstance(item, va.Const) for item in items):
        return None
    return ", ".join(sorted(repr(item.value) for item in items if isinstance(item, va.Const)))


def _is_setting(value: va.Value) -> bool:
    """Is it a number that stays what it is: neither of the data nor counted?"""
    if isinstance(value, va.Unknown):
        return not value.varies and not value.offset and "[]" not in (value.symbol or "[]")
    return isinstance(value, va.Obj) and value.kind is va.Kind.OPAQUE


def _compare_none(positive: bool, left: va.Value) -> va.Value:
    known: bool | None
    if isinstance(left, va.Const):
        known = left.value is None
    elif isinstance(left, va.Union):
        nones = [isinstance(v, va.Const) and v.value is None for v in left.values]
        unsure = any(_may_be_none(v) for v in left.values)
        known = None if (any(nones) and not all(nones)) or unsure else all(nones)
        if known is None:
            symbol = _symbol_of_maybe(left)
            return va.unknown(f"{symbol} is None" if symbol else None, 0, not positive)
    elif not _may_be_none(left):
        known = False
    else:
        symbol = left.symbol if isinstance(left, (va.Unknown, va.Obj)) else None
        return va.unknown(f"{symbol} is None" if symbol else None, 0, not positive)
    return va.Const(None, known is positive)


def _symbol_of_maybe(value: va.Union) -> str | None:
    """The identity of what is None or one of a few things that were made in view."""
    things = [v for v in value.values if not (isinstance(v, va.Const) and v.value is None)]
    if not all(isinstance(thing, va.Obj) and thing.place is not None for thing in things):
        return None
    return ",".join(f"{thing.kind.value}:{thing.id}" for thing in things if isinstance(thing, va.Obj))


def _may_be_none(value: va.Value) -> bool:
    if isinstance(value, va.Unknown):
        return True
    return isinstance(value, va.Obj) and value.place is None and value.symbol is not None


def _compare_constants(op: str, left: va.Const, right: va.Const) -> va.Value:
    counter = left.counter
    if counter is None and right.counter is not None:
        return va.unknown(None, varies=True)
    if counter is not None and isinstance(left.value, int) and isinstance(right.value, int):
        known = _compare_witness(op, left.value, counter, right.value)
        if known is None:
            return va.unknown(None, varies=True)
        return va.Const(None, known, va.Counter())
    try:
        return va.Const(None, constants.compare(op, left.value, right.value), counter)
    except (TypeError, ValueError):
        return va.UNKNOWN


def _compare_witness(op: str, value: int, counter: va.Counter, other: int) -> bool | None:
    """A counted value against a literal. The witness 2 stands for a divisor or bound above 3."""
    if counter.modulus is not None:
        if not counter.folded:
            return constants.compare(op, value, other)
        if op not in ("==", "!="):
            return None
        if other == 0:
            wanted = 0
        elif isinstance(counter.modulus, int) and other == counter.modulus - 1:
            wanted = _WITNESS - 1
        elif isinstance(counter.modulus, str) and other == 1:
            return None
        else:
            return None
        return (value == wanted) is (op == "==")
    if counter.more and other > value:  # a later turn, for which this one stands
        return (other == 3 or value == _WITNESS) is (op == "==") if op in ("==", "!=") else None
    if other > 3 and op in ("==", "!="):
        return (value == _WITNESS) is (op == "==")
    if other > 3 and op in (">=", ">"):
        return None
    return constants.compare(op, value, other)


def _compare_counter(m: Machine, op: str, left: va.Const, right: va.Unknown | va.Obj) -> va.Value:
    """A counted value against an unknown: `(i + 1) % k == 0`, `i % k == k - 1`, `seen == k`."""
    counter = left.counter
    assert counter is not None
    symbol = right.symbol
    offset = right.offset if isinstance(right, va.Unknown) else 0
    undecided = va.unknown(None, taint=m.taint(right) | {"counter"}, varies=True)
    if counter.last is not None and (offset == -1 or "len(" in (symbol or "")):
        known = _compare_end(op, counter.last)
        return undecided if known is None else va.Const(None, known, va.Counter())
    if counter.modulus is not None:
        if op in ("==", "!=") and offset == -1 and counter.modulus == symbol:
            return va.Const(None, (left.value == _WITNESS - 1) is (op == "=="), va.Counter())
        return undecided
    if symbol is None or offset or "len(" in symbol or not isinstance(left.value, int):
        return undecided
    if op in ("==", ">=") and 0 < left.value <= _WITNESS and _is_window(symbol):
        return va.Const(None, left.value == _WITNESS, va.Counter())
    return undecided


def _compare_end(op: str, is_last: bool) -> bool | None:
    """An index against the number of turns, one less or not: `i == n - 1`, `i + 1 < len(loader)`."""
    if op in ("==", ">="):
        return is_last
    return not is_last if op in ("!=", "<") else None


def _is_window(symbol: str) -> bool:
    """A period, not a total: comparing a counter with a number of epochs or steps stops a loop."""
    low = symbol.lower()
    return not any(
        word in low for word in ("epoch", "max", "total", "num_steps", "num_iter", "n_iter", "limit", "warm")
    )


# --------------------------------------------------------------------------- narrowing


def narrow(m: Machine, test_node: nd.Expr, taken: bool) -> None:
    """In the branch taken, drop the alternatives of a tested name that contradict the test."""
    if isinstance(test_node, nd.Unary) and test_node.op == "not":
        narrow(m, test_node.operand, not taken)
        return
    if isinstance(test_node, nd.BoolOp):
        if (test_node.op == "and") is taken:
            for operand in test_node.values:
                narrow(m, operand, taken)
        return
    if isinstance(test_node, nd.Call):
        _narrow_to_class(m, test_node, taken)
        return
    target, want_none = test_node, False
    strict = False
    if isinstance(test_node, nd.Compare) and len(test_node.ops) == 1:
        right = test_node.comparators[0]
        if not (
            isinstance(right, nd.Constant)
            and right.value is None
            and test_node.ops[0] in ("is", "is not", "==", "!=")
        ):
            return
        target, strict = test_node.left, True
        want_none = (test_node.ops[0] in ("is", "==")) is taken
    if strict and want_none and isinstance(target, nd.Attribute) and target.attr == "grad":
        if isinstance(first_known(m.eval(target.value)), va.Unknown):
            m.forget_gradients()  # there are none
        return
    if not isinstance(target, nd.Name):
        return
    value = m.lookup(target.id)
    if isinstance(value, va.ModeValue) and not strict:
        _narrow_mode(m, value, taken)
    if not isinstance(value, va.Union):
        return
    if strict:
        kept = [v for v in value.values if (isinstance(v, va.Const) and v.value is None) is want_none]
    else:
        kept = [v for v in value.values if truth(m, v) in (taken, None)]
    _keep(m, target.id, value, kept)


def _narrow_mode(m: Machine, saved: va.ModeValue, taken: bool) -> None:
    """`if was_training: model.train()`: on the other side it was in eval mode before, and still is."""
    if taken is not saved.negated or any(mode.name != "eval" for mode in m.mode(saved.module)):
        return
    before = frozenset(mode for mode in saved.modes if mode.name not in _TRAINING)
    if before:
        m.set_mode(saved.module, before)


def _narrow_to_class(m: Machine, call: nd.Call, taken: bool) -> None:
    """`isinstance(name, classes)` and `torch.is_tensor(name)`."""
    target = call.args[0] if call.args else None
    if not isinstance(target, nd.Name) or not isinstance(call.func, (nd.Name, nd.Attribute)):
        return
    value = m.lookup(target.id)
    if not isinstance(value, va.Union):
        return
    asked = first_known(m.eval(call.func))
    if not isinstance(asked, va.Library) or asked.path not in ("builtins.isinstance", "torch.is_tensor"):
        return
    rest = tuple(m.eval(argument) for argument in call.args[1:])
    answers = [m.library.call(m, asked.path, va.Arguments((v, *rest)), call) for v in value.values]
    kept = [v for v, said in zip(value.values, answers, strict=True) if truth(m, said) in (taken, None)]
    _keep(m, target.id, value, kept)


def _keep(m: Machine, name: str, value: va.Union, kept: list[va.Value]) -> None:
    if kept and len(kept) < len(value.values):
        for scope in m.frames[-1].scope:
            if ("v", scope, name) in m.state.facts:
                m.state.set(("v", scope, name), union(kept, value.evidence))
                break


def narrowed(m: Machine, value: va.Value, wanted: bool) -> va.Value:
    """The alternatives that can have this truth."""
    if isinstance(value, va.Union):
        kept = [v for v in value.values if truth(m, v) in (wanted, None)]
        if kept:
            return union(kept, value.evidence)
    return value
