"""What came out of a run: its stages, in memory and at rest."""
