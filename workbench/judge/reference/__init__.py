"""Arrays that a kernel made, held against a plain reference that ran as a graph."""
