"""Regular expressions whose groups are repeated as often as possible, and never less often instead."""

import sys

# Before 3.11.5, a possessive group that fails leaves the match at a wrong place (Python's issue 106052). Ours have no
# other way to match what they took, so the plain quantifier finds the same, and only takes longer.
MANY = b"*+" if sys.version_info >= (3, 11, 5) else b"*"
