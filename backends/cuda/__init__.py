"""torch on CUDA (and gloo on CPUs): DeviceMesh, parallelize_module, fully_shard, pipelining."""
