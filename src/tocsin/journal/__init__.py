"""The journal: append-only, hash-chained, one writer; `tocsin journal verify` finds any edit or truncation."""
