"""One learned matrix per layer of LightCAKE, for its context sums."""

import torch
from torch import Tensor, nn

from lightcake_fast.errors import InputError


class Mixing:
    """Multiplies the context sums of each layer by a learned matrix; the initial value is the identity.

    The model has the parameters ``entity_mixing`` and ``relation_mixing`` (L, d, d), for the tables that its
    contexts refine, or None. Rows are multiplied from the left.
    """

    @staticmethod
    def attach(model: nn.Module, option: bool, table: Tensor, layers: int, context: str) -> None:
        """Add the matrices to a model with L layers, in the dtype and on the device of a table (.., d).

        Raises:
            InputError: if the option asks for matrices and the model has no layers.
        """
        if option and not layers:
            raise InputError("mixing: expected at least one layer, got layers=0: use mixing=False, or layers")
        identity = table.new_zeros(table.shape[1], table.shape[1])
        identity.diagonal().fill_(1)  # on a meta device, torch.eye would import TorchDynamo
        for name, other in (("entity", "relation"), ("relation", "entity")):
            matrices = nn.Parameter(identity.repeat(layers, 1, 1)) if option and context != other else None
            model.register_parameter(f"{name}_mixing", matrices)

    @staticmethod
    def without_layers(option: bool) -> bool:
        """Return the option of a preset as it fits a model without layers."""
        return False

    @staticmethod
    def added(rows: Tensor, sums: Tensor, matrices: Tensor | None, number: int) -> Tensor:
        """Add the context sums times the matrix of layer ``number`` to the rows, if there are matrices."""
        return rows if matrices is None else torch.addmm(rows, sums, matrices[number])
