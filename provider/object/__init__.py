"""Object stores as tiers, through fsspec's asynchronous interface."""
