"""A drop-in vLLM KV connector that observes MoRIIO's READ barrier.

Attributes:
    __version__: The version of this package.
"""

__version__ = "0.1.0"
