"""What frameworks need beyond a plain loader: one module each, imported where it is used."""
