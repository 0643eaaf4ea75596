"""A function of any operation run and judged by a plain reference."""
