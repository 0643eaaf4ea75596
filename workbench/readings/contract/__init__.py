"""What a function promises of its arithmetic, read off its outputs."""
