"""Planning: who delivers which rows, in which order. Pure functions of counts: no I/O, no torch, no pyarrow.

    files ─► splits (strategies) ─► ordered rows (order) ─► a rank's rows (sharding, even) ─► shards (workers) ─► tasks

`plan.Plan` puts these together; every rank computes the same plan, and builds piece objects for itself alone.
"""
