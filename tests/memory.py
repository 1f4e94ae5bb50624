"""The memory of this process, as Linux counts it."""

from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_memory() -> int:
    """The largest resident memory so far, in bytes.

    Not `ru_maxrss`: that of a process that `subprocess` starts begins with the memory of its parent.
    """
    return _kib("VmHWM") * 1024


def address_space() -> int:
    """The memory that is allocated now, used or not, in bytes."""
    return _kib("VmSize") * 1024


def restart_peak() -> int:
    """Let the peak begin anew; the resident memory now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _kib("VmRSS") * 1024


def _kib(name: str) -> int:
    return int(next(line.split()[1] for line in _STATUS.read_text().splitlines() if line.startswith(name)))
