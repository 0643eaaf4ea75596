"""Two judged runs beside each other."""
