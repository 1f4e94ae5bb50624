"""Documents packed into sequences of one length: plans over lengths, without data."""
