"""The fault table: real pairs under faults, bare upstream beside report, recompute and fail."""
