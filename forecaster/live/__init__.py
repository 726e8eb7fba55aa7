"""Models at work: the risk of every GPU at every turn, why, and what past cases were like it."""
