"""Support for frameworks beyond a plain loader: one module each, imported where it is used."""
