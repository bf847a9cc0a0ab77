"""The recorded incident: a real pair from healthy to salad, replayed into the shipped rules."""
