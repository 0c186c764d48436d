"""One RocketMQ message or unit, and columns of them: formats and batch kernels, no I/O."""
