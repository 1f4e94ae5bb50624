"""Imported by Python's fork server before it starts processes: it outlives the signals that workers ignore."""

from torch_dataloader_utils.executors.signals import hold_back_in_fork_server

hold_back_in_fork_server()
