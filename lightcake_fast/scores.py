"""Registry of score functions by name: the package's and the user's. Each new one is tested when added."""

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
FUSED = tuple(name for name in _BLOCKS if not has_planes(_BLOCKS[name]))  # scores that all kernels have
_NAME = re.compile(r"[A-Za-z_][\w.-]*(:[A-Za-z_]\w*)?")
_OF_A_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_ENTRIES = 4  # entries per column in the test


def register_score(name: str, score: Any, *, replace: bool = False) -> None:
    """Add a score function by name, for ``context_layer``, ``LightCAKE`` and ``--score``.

    The function first tests the score on small float64 rows. It compares the gradients of a block with
    autograd.

    Args:
        name: letters, digits, ``_``, ``-`` and ``.``; or ``module:NAME``, the name that ``--score`` uses for
            a score in a module.
        score: a ``Score`` in plain PyTorch, for the reference back end; or a block of plain functions as in
            ``lightcake_fast.kernels.scores``, for all back ends.
        replace: let a ``Score`` replace an earlier one with the same name, for example when a notebook cell
            runs again. The package's scores and blocks cannot be replaced, because kernels are compiled from
            them.

    Raises:
        InputError: the name is invalid or already used, or a function of the score fails its test. The
            message names the function, the expected value and the actual one.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(f"name: expected letters, digits, '_', '-' and '.', or MODULE:NAME, got {name!r}")
    if score is not None and _BLOCKS.get(name, SCORES.get(name)) is score:
        return
    if name in (*_BLOCKS, *BUILT_IN):
        taken = ", ".join(SCORES)
        raise InputError(
            f"name: expected a name other than {taken}, got {name!r}: its score cannot be replaced, so use "
            "another name"
        )
    if name in SCORES and not replace:
        raise InputError(
            f"name: expected a name other than {', '.join(SCORES)}, got {name!r}: use another name, or "
            "replace=True"
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
    """Import and register the score ``module:NAME``; Python's search path includes the working directory.

    This runs the module's code. Call it only with a name that the user typed, never with a name from a file.

    Raises:
        InputError: the module or the name does not exist; or as ``register_score``.
    """
    if not named_by_module(score):
        raise InputError(f"score: expected MODULE:NAME, got {score!r}")
    module, _, name = score.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        found = getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise InputError(
            f"score: expected MODULE:NAME that can be imported, got {score!r}: {error}"
        ) from error
    register_score(score, found)


def named_by_module(score: str) -> bool:
    """Return whether a score name has the form ``module:NAME``."""
    return _OF_A_MODULE.fullmatch(score) is not None


def fused(score: str, backend: str) -> bool:
    """Return whether a fused back end, "numba" or "triton", has this score."""
    return score in _BLOCKS and not (backend == "triton" and has_planes(_BLOCKS[score]))


def score_named(name: str) -> Score:
    """Return the registered score with this name.

    Raises:
        InputError: no score with this name is registered.
    """
    if name in SCORES:
        return SCORES[name]
    if named_by_module(name):
        raise InputError(
            f"score: expected a registered score, got {name!r}, which is code: if you trust it, give --score "
            f"{name} or call register_score"
        )
    raise InputError(f"score: expected one of {', '.join(SCORES)}, got {name!r}")


class _TrialError(Exception):
    """The test of a new score failed."""


def _rows(count: int, *shape: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=random, dtype=torch.float64) for _ in range(count)]


def _called(what: Any, name: str, shape: tuple[int, ...], *arguments: Any, columns: int = 0) -> Any:
    """Call a function of a score; check that it returns a tensor of this shape, or ``columns`` of them."""
    if not callable(getattr(what, name, None)):
        raise _TrialError(f"{name}: expected a function, got {getattr(what, name, None)!r}")
    try:
        result = getattr(what, name)(*arguments)
    except Exception as error:  # the user's code can raise any error
        raise _TrialError(f"{name}: {type(error).__name__}: {error}") from error
    got = [getattr(value, "shape", None) for value in result] if columns else [getattr(result, "shape", None)]
    if isinstance(result, tuple) != bool(columns) or got != [shape] * max(columns, 1):
        shapes = [None if one is None else tuple(one) for one in got]
        kind = f"a tuple of {columns} of" if columns else "a tensor of"
        raise _TrialError(f"{name}: expected {kind} shape {shape}, got shapes {shapes}")
    return result


def _try_score(score: Score) -> None:
    columns = score.columns
    if type(columns) is not int or columns < 1:
        raise _TrialError(f"columns: expected an integer of at least 1, got {columns!r}")
    d = columns * _ENTRIES * 2
    e_h, e_r, e_t = (row.requires_grad_() for row in _rows(3, 3, d))
    psi = _called(score, "psi", (3,), e_h, e_r, e_t)
    _called(score, "phi_ent", (3, d), e_r, e_t)
    _called(score, "phi_rel", (3, d), e_h, e_t)
    _called(score, "psi", (3, 3), e_h[:, None], e_r, e_t[:, None])  # B x R, as in the model
    if not psi.requires_grad:
        raise _TrialError("psi: expected a result that autograd can differentiate, got a constant")


def _try_block(block: Any) -> None:
    if has_planes(block):
        raise _TrialError("planes: expected a block without planes, got planes: write a Score instead")
    columns = getattr(block, "columns", None)
    if columns not in (1, 2):
        raise _TrialError(f"columns: expected 1 or 2, got {columns!r}: for other values write a Score")
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
                    f"{name}: expected the gradient of psi and phi, got a difference of up to {off:.2g} in "
                    f"column {k}"
                )
