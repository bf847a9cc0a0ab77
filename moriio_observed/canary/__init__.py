"""Known-answer probes of a running deployment: what they see, no counter can."""
