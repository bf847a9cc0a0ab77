"""Any bytes at every front door: what comes in is used, or refused with a clear word.

`doors` lists them, `tests/unit/test_front_doors.py` knocks at each for a moment, and
``python -m tests.fuzz`` for as long as somebody wants.
"""
