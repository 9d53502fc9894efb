"""The score functions there are, by name: the package's and a user's own, each tried when it is added."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightcake_fast.errors import InputError
from lightcake_fast.kernels.scores import SCORES as _BLOCKS
from lightcake_fast.kernels.scores import has_planes
from lightcake_fast.reference.scores import SCORES, Score, of_block, square_root

__all__ = [
    "BUILT_IN",
    "FUSED",
    "SCORES",
    "Score",
    "fused",
    "import_score",
    "named_by_module",
    "register_score",
    "score_named",
]

BUILT_IN = tuple(SCORES)
FUSED = tuple(name for name in _BLOCKS if not has_planes(_BLOCKS[name]))  # those that all kernels have
_NAME = re.compile(r"[A-Za-z_][\w.-]*(:[A-Za-z_]\w*)?")
_OF_A_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_ENTRIES = 4  # of a column in the trial


def register_score(name: str, score: Any, *, replace: bool = False) -> None:
    """Add a score function: ``context_layer``, ``LightCAKE`` and ``--score`` then know it by its name.

    It is tried on small float64 rows first; a block's gradients are compared with autograd's.

    Args:
        name: letters, digits, ``_``, ``-`` and ``.``; or ``module:NAME``, as ``--score`` calls one that lies
            in a module.
        score: a ``Score`` in plain PyTorch, for the reference back end; or a block of plain functions as in
            ``lightcake_fast.kernels.scores``, for all back ends.
        replace: let a ``Score`` take the name of an earlier one, as when a notebook's cell runs again. The
            package's scores keep their names, and blocks for the whole process: kernels are compiled of them.

    Raises:
        InputError: the name is no name or is taken, or the score is not what it should be; the message says
            which function, what was got and what was wanted.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(f"name: got {name!r}, wanted letters, digits, '_', '-' and '.', or MODULE:NAME")
    if score is not None and _BLOCKS.get(name, SCORES.get(name)) is score:
        return
    if name in (*_BLOCKS, *BUILT_IN):
        taken = ", ".join(SCORES)
        raise InputError(f"name: got {name!r}, which is taken for good: wanted none of {taken}")
    if name in SCORES and not replace:
        raise InputError(
            f"name: got {name!r}, which is taken: wanted none of {', '.join(SCORES)}, or replace=True"
        )
    try:
        if isinstance(score, Score):
            _try_score(score)
            SCORES[name] = score
        else:
            _try_block(score)
            SCORES[name] = of_block(score)
            _BLOCKS[name] = score
    except _TrialError as error:
        raise InputError(f"score {name!r}: {error}") from error.__cause__


def import_score(score: str) -> None:
    """Register what ``module:NAME`` names; the module is found as Python does, in the working directory too.

    This runs the module's code: call it with what a user typed, never with what a file says.

    Raises:
        InputError: there is no such module or name, or see ``register_score``.
    """
    if not named_by_module(score):
        raise InputError(f"score: got {score!r}, wanted MODULE:NAME")
    module, _, name = score.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        found = getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise InputError(f"score: got {score!r}, wanted MODULE:NAME that can be imported: {error}") from error
    register_score(score, found)


def named_by_module(score: str) -> bool:
    """Whether this is ``module:NAME``."""
    return _OF_A_MODULE.fullmatch(score) is not None


def fused(score: str, backend: str) -> bool:
    """Whether a fused back end, "numba" or "triton", has this score."""
    return score in _BLOCKS and not (backend == "triton" and has_planes(_BLOCKS[score]))


def score_named(name: str) -> Score:
    """The score of a name.

    Raises:
        InputError: it is not registered.
    """
    if name in SCORES:
        return SCORES[name]
    if named_by_module(name):
        raise InputError(
            f"score: got {name!r}, which is code: wanted it given as --score {name}, or registered "
            "(register_score), by whoever trusts it"
        )
    raise InputError(f"score: got {name!r}, wanted one of {', '.join(SCORES)}")


class _TrialError(Exception):
    """What a trial found."""


def _rows(count: int, *shape: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=random, dtype=torch.float64) for _ in range(count)]


def _called(what: Any, name: str, shape: tuple[int, ...], *arguments: Any, columns: int = 0) -> Any:
    """What a function of a score says: a tensor of this shape, or a tuple of ``columns`` such."""
    if not callable(getattr(what, name, None)):
        raise _TrialError(f"{name}: got {getattr(what, name, None)!r}, wanted a function")
    try:
        result = getattr(what, name)(*arguments)
    except Exception as error:  # a user's code: it may raise anything
        raise _TrialError(f"{name}: {type(error).__name__}: {error}") from error
    got = [getattr(value, "shape", None) for value in result] if columns else [getattr(result, "shape", None)]
    if isinstance(result, tuple) != bool(columns) or got != [shape] * max(columns, 1):
        shapes = [None if one is None else tuple(one) for one in got]
        kind = f"a tuple of {columns} of" if columns else "a tensor of"
        raise _TrialError(f"{name}: got shapes {shapes}, wanted {kind} shape {shape}")
    return result


def _try_score(score: Score) -> None:
    columns = score.columns
    if type(columns) is not int or columns < 1:
        raise _TrialError(f"columns: got {columns!r}, wanted a whole number of at least 1")
    d = columns * _ENTRIES * 2
    e_h, e_r, e_t = (row.requires_grad_() for row in _rows(3, 3, d))
    psi = _called(score, "psi", (3,), e_h, e_r, e_t)
    _called(score, "phi_ent", (3, d), e_r, e_t)
    _called(score, "phi_rel", (3, d), e_h, e_t)
    _called(score, "psi", (3, 3), e_h[:, None], e_r, e_t[:, None])  # every relation of a batch of pairs
    if not psi.requires_grad:
        raise _TrialError("psi: got a constant, wanted a function of the rows that PyTorch differentiates")


def _try_block(block: Any) -> None:
    if has_planes(block):
        raise _TrialError("planes: got a block with planes, wanted a Score, in plain PyTorch")
    columns = getattr(block, "columns", None)
    if columns not in (1, 2):
        raise _TrialError(f"columns: got {columns!r}, wanted 1 or 2 (or a Score, for plain PyTorch)")
    shape, number = (5, _ENTRIES), (5, 1)
    h, r, t, g, q = (
        tuple(rows) for rows in torch.stack(_rows(5 * columns, *shape)).view(5, columns, *shape).unbind()
    )
    delta, alpha, beta = _rows(3, *number)
    for value in (*h, *r, *t):
        value.requires_grad_()
    total = _called(block, "psi_term", shape, h, r, t).sum(1, keepdim=True)
    psi = _called(block, "psi", number, total, square_root)
    phi_ent = _called(block, "phi_ent", shape, r, t, columns=columns)
    phi_rel = _called(block, "phi_rel", shape, h, t, columns=columns)
    loss = (delta * psi).sum()
    loss = loss + sum((alpha * a * b).sum() for a, b in zip(g, phi_ent, strict=True))
    loss = loss + sum((beta * a * b).sum() for a, b in zip(q, phi_rel, strict=True))
    expected = torch.autograd.grad(loss, (*h, *r, *t), allow_unused=True, materialize_grads=True)
    slope = delta
    if getattr(block, "psi_slope", None) is not None:
        slope = delta * _called(block, "psi_slope", number, psi, torch.where)
    for n, (name, arguments) in enumerate(
        (
            ("grad_h", (slope, beta, q, h, r, t)),
            ("grad_r", (slope, alpha, g, h, r, t)),
            ("grad_t", (slope, alpha, g, beta, q, h, r, t)),
        )
    ):
        gradient = _called(block, name, shape, *arguments, columns=columns)
        for k, value in enumerate(gradient):
            wanted = expected[n * columns + k]
            if not torch.allclose(value, wanted, rtol=1e-6, atol=1e-8):
                off = (value - wanted).abs().max()
                raise _TrialError(
                    f"{name}: column {k} is not the gradient of psi and phi, off by up to {off:.2g}"
                )
