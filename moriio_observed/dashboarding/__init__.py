"""The Grafana dashboards: built from the YAML under `dashboards/`, checked, sent to a Grafana.

`plugin` and `build` need grafana-dashboard-builder, a development tool. All else
needs the extra `dashboards`. Nothing in serving imports this package.
"""
