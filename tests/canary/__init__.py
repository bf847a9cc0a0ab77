"""The canary on real pairs: whether it is quiet while all is well, and sees each kind of salad."""
