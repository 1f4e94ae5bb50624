"""The public entrance: start here."""
