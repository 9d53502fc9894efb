"""Command-line properties of a setting: help, group and bounds."""

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from typing import Any

from lightcake_fast.scores import named_by_module

GROUPS = ("data and folders", "model", "optimisation", "regularisation", "running")
LARGEST = 2**31
_KINDS = {"str": "text", "int": "an integer", "float": "a number", "bool": "true or false"}


@dataclass(frozen=True)
class Flag:
    """Command-line properties of a field.

    Attributes:
        help: Help text.
        group: One of `GROUPS`.
        metavar: Placeholder of the value in the help.
        choices: Allowed values, or a function that returns them. Empty for no limit.
        by_module: Whether MODULE:NAME is allowed too.
        at_least: Inclusive lower bound.
        above: Exclusive lower bound.
        below: Exclusive upper bound. Every number has one.
        on_resume: Whether the flag may be given together with `--resume`.
        saved: Whether the field belongs to the run and not only to one call of the command.
        common: Whether `--help` shows the flag. `--help-all` shows every flag.
    """

    help: str
    group: str
    metavar: str | None = None
    choices: tuple[str, ...] | Callable[[], tuple[str, ...]] = ()
    by_module: bool = False
    at_least: float | None = None
    above: float | None = None
    below: float = LARGEST
    on_resume: bool = False
    saved: bool = True
    common: bool = False

    @property
    def known(self) -> tuple[str, ...]:
        """The current choices."""
        return self.choices() if callable(self.choices) else self.choices

    def accepts(self, value: Any) -> bool:
        """Whether a value of the right type is one of the choices and within the bounds."""
        if isinstance(value, str):
            known = self.known
            good = not known or value in known or (self.by_module and named_by_module(value))
            return good and bool(value)
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and bool(value < self.below)  # excludes infinity and NaN too
        )

    def wanted(self, kind: str, value: Any) -> str:
        """Describe the allowed values for an error message about `value`."""
        if self.choices:
            return "one of " + ", ".join(self.known) + ", or MODULE:NAME" * self.by_module
        if value == "":
            return "nonempty text"
        limits = ("of at least", self.at_least), ("above", self.above), ("below", self.below)
        bounds = [f"{word} {bound}" for word, bound in limits if bound is not None]
        if self.below == LARGEST and not (isinstance(value, int | float) and value >= LARGEST):
            bounds.pop()  # mentioned only for values that are too large
        return " ".join([_KINDS[kind], " and ".join(bounds)]).rstrip()


def flag(help: str, group: str, default: Any = MISSING, **limits: Any) -> Any:
    """Make a dataclass field that is a command-line flag too."""
    return dataclasses.field(default=default, metadata={"flag": Flag(help, group, **limits)})
