"""What building, checking or sending dashboards cannot go on after."""


class DashboardsError(Exception):
    """The dashboards cannot be used; the message says why and what to do."""
