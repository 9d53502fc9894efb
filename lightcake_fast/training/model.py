"""The model that a configuration describes."""

from torch import Generator

from lightcake_fast.models import MODELS, RelationModel
from lightcake_fast.training.config import TrainingConfig


def build_model(
    config: TrainingConfig, num_entities: int, num_relations: int, generator: Generator | None = None
) -> RelationModel:
    """A new model with initial weights.

    Args:
        config: The run's configuration.
        num_entities: N.
        num_relations: R, raw relations.
        generator: Source of the initial weights, on the device they shall lie on; None takes PyTorch's own.

    Raises:
        InputError: The width does not fit the model.
    """
    spec = MODELS[config.model]
    return spec.make(
        num_entities,
        num_relations,
        dim=config.dim,
        relation_bias=config.relation_bias,
        input_dropout=config.input_dropout,
        row_dropout=config.row_dropout,
        unseen_rate=config.unseen_rate,
        generator=generator,
        **{name: getattr(config, name) for name in spec.arguments},
    )
