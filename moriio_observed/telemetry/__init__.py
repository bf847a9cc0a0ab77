"""What is counted, and the ways out: vLLM's own statistics, Prometheus and OTLP."""
