"""A graph divided among processes: partitions, the shard of a rank, and the sharded layer."""
