"""What is asked: a case, its inputs, what a kernel promises, and the names of the stages."""
