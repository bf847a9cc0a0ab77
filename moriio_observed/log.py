"""Loggers whose lines reach a vLLM server's log."""

import logging


def get_logger(name: str) -> logging.Logger:
    """Return the logger of one of our modules, by its ``__name__``.

    vLLM gives a handler and its level to loggers under ``vllm`` only; below any other, INFO is
    lost.
    """
    return logging.getLogger(f"vllm.{name}")
