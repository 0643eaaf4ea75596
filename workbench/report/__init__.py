"""What a user sees of a diff: text, pictures and pages."""
