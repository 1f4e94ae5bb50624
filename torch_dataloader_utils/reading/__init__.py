"""From tasks to blocks: decode, filter, convert; in-line, on threads or in worker processes. Free of torch."""
