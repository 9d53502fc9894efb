"""How often each loop and branch of a Triton kernel runs, in every program of a launch.

A kernel's control flow depends on few scalars: its arguments, the program's number and what it loads from
the plan. They are computed here for all programs at once, from the launch's real arguments; all else in
the kernel, which is data, stays unknown. A branch on something unknown counts as always taken.
"""

import ast
import builtins
import functools
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.control_flow import Key, Tally
from bench.scalars import UNKNOWN, Array, Known, Unknown, apply, call_builtin, constant, merged, parameter


def trip_counts(function: Any, arguments: Mapping[str, Any], grid: Sequence[int]) -> dict[Key, Tally]:
    """Count the runs of each loop and branch of a launch.

    Args:
        function: the Triton function.
        arguments: what its parameters are bound to: tensors on the CPU, numbers, types, functions.
        grid: programs along each axis.

    Returns:
        A tally for each ``for``, ``while`` and ``if`` that compiles to a branch, by place and calls.

    Raises:
        ValueError: if a loop's bounds are unknown, or a statement is of a kind that kernels do not use.
    """
    evaluator = _Evaluator(grid)
    values = {name: parameter(value) for name, value in arguments.items()}
    evaluator.call(function, values, np.ones(evaluator.count, bool))
    return evaluator.tallies


@dataclass(frozen=True)
class _Source:
    """A Triton function's statements and the names that they see."""

    body: list[ast.stmt]
    scope: Mapping[str, Any]
    file: str
    first_line: int

    def place(self, node: ast.stmt | ast.expr) -> tuple[str, int]:
        return self.file, self.first_line + node.lineno - 1


@functools.cache
def _source(python: Any) -> _Source:
    lines, first = inspect.getsourcelines(python)
    definition = ast.parse(textwrap.dedent("".join(lines))).body[0]
    assert isinstance(definition, ast.FunctionDef)
    scope = {**vars(builtins), **python.__globals__, **inspect.getclosurevars(python).nonlocals}
    return _Source(definition.body, scope, python.__code__.co_filename, first)


@dataclass
class _Frame:
    """A call: its local names and what it returns; ``live`` are the programs that have not returned."""

    names: dict[str, Any]
    source: _Source
    live: Array
    returned: Any = None

    def error(self, node: ast.stmt, reason: str) -> ValueError:
        file, line = self.source.place(node)
        return ValueError(f"{file}:{line}: {reason} in `{ast.unparse(node).splitlines()[0]}`")


class _Evaluator:
    """Runs a kernel for all programs; ``active`` says for which of them a statement is run."""

    def __init__(self, grid: Sequence[int]) -> None:
        self.sizes = [*grid, 1, 1][:3]
        self.count = int(np.prod(self.sizes))
        numbers = np.arange(self.count)
        first, second, _ = self.sizes
        self.ids = [numbers % first, numbers // first % second, numbers // (first * second)]
        self.tallies: dict[Key, Tally] = {}
        self.calls: list[tuple[str, int]] = []  # that are being run, the innermost last

    def call(self, function: Any, values: dict[str, Any], active: Array) -> Any:
        """Run a Triton function on the given values of its parameters."""
        source = _source(function.fn)
        frame = _Frame(values, source, active)
        self.run(source.body, frame, active)
        return frame.returned

    def run(self, statements: Sequence[ast.stmt], frame: _Frame, active: Array) -> None:
        """Run statements in order."""
        for statement in statements:
            live = active & frame.live
            if live.any():
                self.run_one(statement, frame, live)

    def run_one(self, statement: ast.stmt, frame: _Frame, active: Array) -> None:
        match statement:
            case ast.Pass() | ast.Assert():
                pass
            case ast.Expr(value=value):
                self.value(value, frame, active)
            case ast.Assign(targets=targets, value=value):
                result = self.value(value, frame, active)
                for target in targets:
                    self.assign(target, result, frame, active)
            case ast.AnnAssign(target=target, value=value):
                self.assign(
                    target, UNKNOWN if value is None else self.value(value, frame, active), frame, active
                )
            case ast.AugAssign(target=target, op=op, value=value):
                before = self.value(target, frame, active)
                self.assign(target, apply(op, before, self.value(value, frame, active)), frame, active)
            case ast.Return(value=value):
                if value is not None:
                    frame.returned = merged(active, self.value(value, frame, active), frame.returned)
                frame.live = frame.live & ~active
            case ast.If():
                self.run_if(statement, frame, active)
            case ast.For():
                self.run_for(statement, frame, active)
            case ast.While():
                self.run_while(statement, frame, active)
            case _:
                raise frame.error(statement, "a kind of statement that no kernel had so far")

    def run_if(self, statement: ast.If, frame: _Frame, active: Array) -> None:
        test = self.value(statement.test, frame, active)
        if isinstance(test, np.ndarray):
            holds, assumed = active & test.astype(bool), False
        elif isinstance(test, Unknown):
            holds, assumed = active, True
        else:
            self.run(statement.body if test else statement.orelse, frame, active)
            return
        self.tally(statement, frame, Tally(active, holds, holds, assumed))
        self.run(statement.body, frame, holds)
        self.run(statement.orelse, frame, active & ~holds)
        if assumed:
            self.forget(statement, frame)

    def run_for(self, statement: ast.For, frame: _Frame, active: Array) -> None:
        unrolled, bounds = self.bounds(statement, frame, active)
        if unrolled:
            for number in range(*bounds):
                self.assign(statement.target, number, frame, active)
                self.run(statement.body, frame, active)
            return
        if any(isinstance(bound, Unknown) for bound in bounds):
            raise frame.error(statement, "unknown bounds")
        start, stop, step = (np.broadcast_to(np.asarray(bound, np.int64), self.count) for bound in bounds)
        trips = np.where(active, np.maximum(0, -((start - stop) // step)), 0)
        self.tally(statement, frame, Tally(active, trips > 0, trips))
        for number in range(int(trips.max(initial=0))):
            live, outer = trips > number, self.tallies
            self.tallies = {}
            self.assign(statement.target, start + number * step, frame, live)
            self.run(statement.body, frame, live)
            met, self.tallies = self.tallies, outer
            alike = all(tally.assumed for tally in met.values())  # then the other runs are too
            self.add(met, trips if alike else 1)
            if alike:
                break
        self.forget(statement, frame)

    def bounds(self, statement: ast.For, frame: _Frame, active: Array) -> tuple[bool, list[Any]]:
        """Whether a loop is unrolled by Triton; its start, stop and step."""
        if not isinstance(statement.iter, ast.Call):
            raise frame.error(statement, "a loop over something else than a range")
        function = self.value(statement.iter.func, frame, active)
        values = [self.value(argument, frame, active) for argument in statement.iter.args]
        bounds = [0, *values] if len(values) == 1 else values
        return getattr(function, "__name__", "") == "static_range", [*bounds, 1][:3]

    def run_while(self, statement: ast.While, frame: _Frame, active: Array) -> None:
        rounds: list[Array] = []
        live = active
        while live.any():
            test = self.value(statement.test, frame, live)
            if isinstance(test, Unknown):
                raise frame.error(statement, "an unknown condition")
            live = live & np.broadcast_to(np.asarray(test, bool), self.count)
            rounds.append(live)
            self.run(statement.body, frame, live)
        self.tally(statement, frame, Tally(active, rounds[0], np.sum(rounds, axis=0)))

    def tally(self, statement: ast.stmt, frame: _Frame, tally: Tally) -> None:
        self.add({(frame.source.place(statement), *self.calls[::-1]): tally}, 1)

    def add(self, met: Mapping[Key, Tally], times: Array | int) -> None:
        """Add to the tallies those of something that runs so often."""
        for key, more in met.items():
            zero = np.zeros(self.count)
            known = self.tallies.get(key, Tally(zero, zero, zero))
            self.tallies[key] = Tally(
                known.reached + more.reached * times,
                known.entered + more.entered * times,
                known.runs + more.runs * times,
                known.assumed or more.assumed,
            )

    def forget(self, statement: ast.stmt, frame: _Frame) -> None:
        """Make unknown what a statement assigns."""
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                frame.names[node.id] = UNKNOWN

    def assign(self, target: ast.expr, value: Any, frame: _Frame, active: Array) -> None:
        match target:
            case ast.Name(id=name):
                frame.names[name] = merged(active, value, frame.names.get(name))
            case ast.Tuple(elts=parts):
                values = value if isinstance(value, tuple) else (UNKNOWN,) * len(parts)
                for part, item in zip(parts, values, strict=True):
                    self.assign(part, item, frame, active)

    def value(self, node: ast.expr, frame: _Frame, active: Array) -> Any:
        """An expression: a Python value, an array with a number for each program, or unknown."""

        def of(part: ast.expr) -> Any:
            return self.value(part, frame, active)

        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return constant(
                    frame.names[name] if name in frame.names else frame.source.scope.get(name, UNKNOWN)
                )
            case ast.Attribute(value=owner, attr=name):
                known = of(owner)
                return UNKNOWN if isinstance(known, Known) else constant(getattr(known, name, UNKNOWN))
            case ast.Tuple(elts=parts):
                return tuple(of(part) for part in parts)
            case ast.Subscript(value=owner, slice=index):
                known, place = of(owner), of(index)
                return known[place] if isinstance(known, tuple) and isinstance(place, int) else UNKNOWN
            case ast.BinOp(left=left, op=op, right=right):
                return apply(op, of(left), of(right))
            case ast.UnaryOp(op=op, operand=operand):
                return apply(op, of(operand))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return apply(op, of(left), of(right))
            case ast.BoolOp(op=op, values=values):
                return functools.reduce(functools.partial(apply, op), [of(value) for value in values])
            case ast.IfExp(test=test, body=then, orelse=other):
                known = of(test)
                if isinstance(known, Unknown | np.ndarray):
                    return UNKNOWN
                return of(then if known else other)
            case ast.Call():
                return self.value_of_call(node, frame, active)
        return UNKNOWN

    def value_of_call(self, node: ast.Call, frame: _Frame, active: Array) -> Any:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            return self.value(node.func.value, frame, active)
        function = self.value(node.func, frame, active)
        values = [self.value(argument, frame, active) for argument in node.args]
        named = {k.arg: self.value(k.value, frame, active) for k in node.keywords if k.arg}
        name = getattr(function, "__name__", "")
        if hasattr(function, "fn") and not function.fn.__module__.startswith("triton."):
            bound = inspect.signature(function.fn).bind(*values, **named)
            bound.apply_defaults()
            self.calls.append(frame.source.place(node))
            result = self.call(function, dict(bound.arguments), active)
            self.calls.pop()
            return result
        if name in ("program_id", "num_programs"):
            axis = [*values, named.get("axis")][0]
            return self.ids[axis] if name == "program_id" else self.sizes[axis]
        return UNKNOWN if named else call_builtin(name, values, active)
