"""Background steps of an owner: snapshots, deletions, garbage, merges, offload, retention.

One module a step. `upkeep.py` lists and runs them (`steps_of`), their base is `container/steps.py`.
Begin with `retention.py`.
"""
