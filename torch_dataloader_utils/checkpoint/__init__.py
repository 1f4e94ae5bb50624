"""From a position in an epoch to a state, and back."""
