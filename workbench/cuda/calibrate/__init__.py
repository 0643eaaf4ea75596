"""What contracts assume of a machine, measured."""
