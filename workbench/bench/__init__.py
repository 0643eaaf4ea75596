"""What is measured, each beside a peer of the same run."""
