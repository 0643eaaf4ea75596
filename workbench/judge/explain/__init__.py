"""What explains an error."""
