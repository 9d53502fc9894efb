"""Run by several ranks: a few steps in float64, compared with the steps of one process."""

import sys

from lightcake_fast.sharding.data import ShardData
from lightcake_fast.sharding.partition import owners
from lightcake_fast.sharding.world import joined
from lightcake_fast.training.experiment import Experiment
from lightcake_fast.training.sharded import ShardedExperiment
from tests.sharding.test_experiment import ALL, DATA, ENTITIES, assert_equal_to, config, trained


def main() -> None:
    """Compare the steps, with the Numba passes if requested."""
    with joined() as world:
        assert world is not None
        owner = owners(DATA.train, DATA.num_entities, world.ranks)
        for flags in (ALL, ENTITIES):
            settings = config(**flags, backend=sys.argv[1])
            one = ShardedExperiment(settings, ShardData.of(DATA, owner, world.rank, world.ranks), world)
            found = *trained(one), one.data.layout.rows, one.parameters
            assert_equal_to([found], *trained(Experiment(settings, DATA)))
            shared = one.model.relations.detach()
            assert all(shared.equal(other) for other in world.gather(shared)), "replicas differ"
        print("equal")


if __name__ == "__main__":
    main()
