"""The plan page: a self-contained HTML page that shows the plan of a dataset, and replans it for other options."""
