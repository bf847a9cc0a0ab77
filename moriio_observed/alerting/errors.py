"""What rendering or checking rules cannot go on after."""


class AlertsError(Exception):
    """The rules or values cannot be used; the message says why and what to do."""
