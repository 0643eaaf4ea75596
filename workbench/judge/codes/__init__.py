"""What is of kernels on 8-bit codes alone."""
