"""What is of kernels on codes alone."""
