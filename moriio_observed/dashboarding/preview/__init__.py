"""Draws dashboards without a Grafana: asks Prometheus, and has a page drawn by a browser.

`window` is the time shown, `prometheus` asks, `frames` turns answers into what Grafana's panels
take, `contents` brings a dashboard together with its answers. `page` builds the page that draws,
once; `browser` serves it and takes the pictures.
"""
