"""A real prefill/decode pair on one machine, and the demo that breaks it on purpose."""
