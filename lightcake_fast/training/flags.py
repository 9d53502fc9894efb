"""What a setting is as a flag: its help, its group and its bounds."""

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from typing import Any

from lightcake_fast.scores import named_by_module

GROUPS = ("data and folders", "model", "optimisation", "regularisation", "running")
LARGEST = 2**31
_KINDS = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false"}


@dataclass(frozen=True)
class Flag:
    """What a field is as a flag.

    Attributes:
        help: Help text.
        group: One of `GROUPS`.
        metavar: Name of the value in the help.
        choices: The values allowed, or a function that says them when it is asked; empty for no such limit.
        by_module: Whether MODULE:NAME is allowed as well.
        at_least: Smallest value allowed.
        above: Value that must be exceeded.
        below: Value that must not be reached; every number has one.
        on_resume: Whether it may be given beside `--resume`.
        saved: Whether it belongs to the run, and not only to the command that was typed.
        common: Whether `--help` shows it; `--help-all` shows every flag.
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
        """The choices there are now."""
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
            and bool(value < self.below)  # no infinity and no NaN either
        )

    def wanted(self, kind: str, value: Any) -> str:
        """The values allowed, in words, after one that is not."""
        if self.choices:
            return "one of " + ", ".join(self.known) + ", or MODULE:NAME" * self.by_module
        if value == "":
            return "text, not empty"
        limits = ("of at least", self.at_least), ("above", self.above), ("below", self.below)
        bounds = [f"{word} {bound}" for word, bound in limits if bound is not None]
        if self.below == LARGEST and not (isinstance(value, int | float) and value >= LARGEST):
            bounds.pop()  # that goes without saying
        return " ".join([_KINDS[kind], " and ".join(bounds)]).rstrip()


def flag(help: str, group: str, default: Any = MISSING, **limits: Any) -> Any:
    """A field of a dataclass that is a flag as well."""
    return dataclasses.field(default=default, metadata={"flag": Flag(help, group, **limits)})
