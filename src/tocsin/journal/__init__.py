"""The journal: append-only, hash-chained, one writer; `tocsin journal verify` finds damage and careless edits, by
a key and a witness those of a stranger as well."""
