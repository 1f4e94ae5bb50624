"""Windows over time: rows of a key that follow one another, planned by their anchors."""
