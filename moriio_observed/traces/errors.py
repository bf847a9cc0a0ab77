"""What looking at traces, or receiving them, cannot go on after."""


class TracesError(Exception):
    """Traces cannot be kept or shown; the message says why and what to do."""
