"""A graph divided among processes: partitions, a rank's shard, and the layer that shards compute together."""
