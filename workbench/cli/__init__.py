"""What is asked from a shell."""
