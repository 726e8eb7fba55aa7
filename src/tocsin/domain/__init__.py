"""The words of Tocsin: pure types without input or output, the standard library (and numpy arrays) only."""
