"""Says what is wrong with a deployment, worst first, and what to do about it.

Pure but for `server`, `prometheus` and `read`, which fetch; nothing imports vLLM. What differs from
one vLLM to the next stands in `versions` and `messages`, which contract tests hold against the
sources.
"""
