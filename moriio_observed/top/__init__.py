"""`moriio-observed top`: what engines say of themselves now, in a terminal.

Pages are asked for in `ask`, become a `snapshot`, two of which make a `change`; a `history` holds
what is known of a server. From it `engine` works out the figures and `signs` what is wrong with
them. A `picture` is all of that, worst first, for `draw` and `as_json`; `board` makes one picture
after the other, and `live` shows them until somebody has seen enough.
"""
