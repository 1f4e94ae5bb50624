"""Planning: which worker delivers which rows, in which order. Pure functions of counts: no I/O, no torch, no pyarrow.

    files ─► splits (strategies) ─► ordered rows (order) ─► a rank's rows (sharding, even) ─► shards (workers) ─► tasks

`plan.Plan` combines these; every rank computes the same plan, and builds piece objects only for itself.
"""
