"""One target on thousands of cases: run in processes, kept in a file, grouped by what is wrong, compared."""
