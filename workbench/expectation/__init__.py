"""What the stages of a trace should be, within which budgets, and which of their elements are not."""
