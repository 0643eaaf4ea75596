"""Exit codes of the command line."""

BUG, USAGE, ENVIRONMENT = 1, 2, 3
DEFECT = 70  # EX_SOFTWARE of sysexits.h: a crash must not look like a bug found
