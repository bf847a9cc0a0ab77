"""Recording rules and alerts: the sources under `alerts/`, rendered with a user's own values.

Pure but for `folder`, which reads the sources, and `promtool`, which runs Prometheus' own tool. It
needs the extra `alerts`, and nothing in serving imports it.
"""
