"""Which rank this process is, and whether all ranks are about to do the same."""
