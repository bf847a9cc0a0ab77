"""What `moriio-observed accept` proves of a deployment on real hardware, and its report."""
