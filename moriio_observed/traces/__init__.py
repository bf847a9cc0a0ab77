"""Traces without a backend: a local receiver of spans, and a look at them in the terminal."""
