"""From a place in an epoch to a state, and back."""
