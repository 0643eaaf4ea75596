"""What both runs and judges: laws that need no reference, and the smallest case that still fails."""
