"""Weights of rows: how often each is drawn in an epoch, exactly, by any rank alone."""
